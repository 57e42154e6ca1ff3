"""Both engines of a pair, on vLLM's own schedulers and workers: turns are exact, and nothing is left of them."""

import pytest

from tests.contract.pair_bench import PROMPT, WRONG, Pair, reply_of


def test_turns_pull_in_both_directions_and_leave_nothing(pair: Pair) -> None:
    offer = pair.turn("one", PROMPT)
    longer = [*PROMPT, *reply_of(PROMPT, 3), 7, 8, 9]
    pair.turn("two", longer, offer)
    assert pair.prefill.transfers() == [("completed", "")]
    assert pair.decode.transfers() == [("completed", "")] * 2
    pair.expire_all()
    assert pair.leftovers() == []


def test_the_bench_sees_a_wrong_block(pair: Pair) -> None:
    """What every other test on it relies on."""
    offer = pair.turn("one", PROMPT)
    pair.decode.nixls[0].blocks.clear()
    pair.start_prefill("two", [*PROMPT, *reply_of(PROMPT, 3), 7], offer)
    with pytest.raises(AssertionError, match=WRONG):
        pair.prefill.run("p-two")
