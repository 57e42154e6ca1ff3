"""A model with sliding windows beside full attention, on real engines: exact in both directions, or recomputed."""

from collections.abc import Callable, Iterator

import pytest

from connector.protocol import PolicyValues
from tests.e2e.model_pairs import Kind, Pair, running_pairs

WINDOWED = Kind(name="sliding-window", num_spared=1)


pytestmark = pytest.mark.timeout(600)
"""The first test waits for the engines as well."""


@pytest.fixture(autouse=True)
def default_policy() -> None:
    """No stack is needed, so there is no policy to set."""


@pytest.fixture(scope="module")
def windowed() -> Iterator[list[Pair]]:
    with running_pairs(WINDOWED) as pairs:
        yield pairs


DIFFERENCES: tuple[Callable[[list[int]], list[int]], ...] = (
    lambda tokens: [*tokens, 7],
    lambda tokens: tokens[:-1],
    lambda tokens: [*tokens[:-60], 7, *tokens[-59:]],
)
CACHES = pytest.mark.parametrize("has_cache", [False, True], ids=["no-cache", "cache"])
LENGTHS = pytest.mark.parametrize("length", [287, 288, 289, 300])
"""Around a block boundary; of 287 tokens vLLM's own D loads a window that its last token attends beyond."""


@CACHES
@LENGTHS
def test_a_windowed_model_is_exact_in_both_directions(windowed: list[Pair], has_cache: bool, length: int) -> None:
    """P takes all that D holds, wherever the window ended; D takes all but the last token, which it computes."""
    pair = windowed[has_cache]
    history, first = pair.conversation(length)
    assert first.num_decode_pulled == length - 1
    prompt = history + pair.tokens(40)
    turn = pair.turn(prompt, first.held)
    assert (turn.prefill_decision, turn.decode_decision) == ("pulled", "pulled")
    assert turn.num_prefill_pulled == len(history) or (has_cache and turn.num_prefill_pulled > 0)
    again = pair.turn(prompt + turn.tokens + pair.tokens(9), turn.held)
    assert again.prefill_decision == "pulled"
    assert again.num_prefill_pulled > 0


@CACHES
def test_a_windowed_model_recomputes_what_the_window_has_left_behind(windowed: list[Pair], has_cache: bool) -> None:
    pair = windowed[has_cache]
    history, first = pair.conversation(300)
    edited = [*history[:150], 5, *history[151:]]
    for prompt in (edited, edited + pair.tokens(40), history[:230], history[:230] + pair.tokens(40)):
        turn = pair.turn(prompt, first.held)
        assert (turn.prefill_decision, turn.num_prefill_pulled) == ("recomputed_unsupported", 0)
    elsewhere = pair.turn(pair.tokens(300), first.held)
    assert elsewhere.prefill_decision == "recomputed_prefix_diverged"


@CACHES
@LENGTHS
def test_a_windowed_model_is_exact_where_p_and_d_were_asked_differently(
    windowed: list[Pair], has_cache: bool, length: int
) -> None:
    pair = windowed[has_cache]
    for change in DIFFERENCES:
        prompt = pair.tokens(length)
        turn = pair.turn(prompt, at_decode=change(prompt))
        assert turn.decode_decision in ("pulled", "trimmed_prefix_diverged", "recomputed_unsupported")


def test_late_pulls_of_a_model_with_several_groups_are_recomputed_and_its_blocks_come_back(
    windowed: list[Pair],
) -> None:
    """vLLM's core dies of a failed pull that is told by its blocks; ours is told by its request, over all groups."""
    pair = windowed[0]
    pair.ear.set_policy(1, PolicyValues(kv_pull_deadline=0.2))
    try:
        decisions = {pair.turn(pair.tokens(300), is_source_still=True).decode_decision for _ in range(3)}
    finally:
        pair.ear.set_policy(2, PolicyValues())
    assert decisions == {"recomputed_timeout"}
    history, first = pair.conversation(300)
    assert pair.turn(history + pair.tokens(40), first.held).prefill_decision == "pulled"
