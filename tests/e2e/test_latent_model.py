"""A model with latent attention (MLA), on real engines: exact in both directions, like full attention."""

from collections.abc import Iterator

import pytest

from tests.e2e.model_pairs import Kind, Pair, running_pairs

BLOCK_SIZE = 16
"""vLLM's CPU kernel for this kind knows no other, and has no prefix cache for it."""

LATENT = Kind(name="latent", has_prefix_cache=False, arguments=("--attention-backend", "CPU_MLA"))


pytestmark = pytest.mark.timeout(600)
"""The first test waits for the engines as well."""


@pytest.fixture(autouse=True)
def default_policy() -> None:
    """No stack is needed, so there is no policy to set."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with running_pairs(LATENT) as (only,):
        yield only


def whole_blocks(num_tokens: int) -> int:
    return num_tokens // BLOCK_SIZE * BLOCK_SIZE


@pytest.mark.parametrize("length", [287, 288, 289])
def test_a_latent_model_reuses_the_common_whole_blocks(pair: Pair, length: int) -> None:
    history, first = pair.conversation(length)
    assert first.num_decode_pulled == length
    edited = [*history[:150], 5, *history[151:]]
    for prompt, num_common in (
        (history + pair.tokens(40), len(history)),
        (history, len(history)),
        (history[:230], 230),
        (history[:230] + pair.tokens(40), 230),
        (edited, 150),
    ):
        turn = pair.turn(prompt, first.held)
        assert turn.num_prefill_pulled == whole_blocks(num_common)
        assert (turn.decode_decision, turn.num_decode_pulled) == ("pulled", len(prompt))


@pytest.mark.parametrize("length", [287, 288, 289])
def test_a_latent_model_is_trimmed_where_p_and_d_were_asked_differently(pair: Pair, length: int) -> None:
    prompt = pair.tokens(length)
    longer = pair.turn(prompt, at_decode=[*prompt, 7])
    assert longer.num_decode_pulled == whole_blocks(length)
    prompt = pair.tokens(length)
    edited = pair.turn(prompt, at_decode=[*prompt[:150], 5, *prompt[151:]])
    assert (edited.decode_decision, edited.num_decode_pulled) == ("trimmed_prefix_diverged", whole_blocks(150))
