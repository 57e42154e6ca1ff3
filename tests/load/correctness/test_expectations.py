"""The yardstick itself: what a leg must report, by tables with the values written out."""

import pytest

from connector.protocol import Decision, Role
from tests.load.correctness.comparison import Answer, largest_difference
from tests.load.correctness.expectations import CacheBounds, LegFacts, Offered, expect, num_common_tokens

HELD = tuple(range(1000, 1100))


def decision(prompt: tuple[int, ...], *, role: Role = Role.PREFILL, local: int = 0, **changes: object) -> object:
    """(verified, the possible decisions with their pulled tokens)."""
    offered = {"tokens": HELD, "adapter": 0, "tenant": "t", **changes}
    facts = LegFacts(
        role=role,
        prompt=prompt,
        adapter=0,
        tenant="t",
        threshold_tokens=64,
        offered=Offered(**offered),  # type: ignore[arg-type]
        num_local_tokens=local,
    )
    expected = expect(facts)
    return expected.num_verified_tokens, expected.pulled_by_decision


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param((*HELD, 1, 2), (96, {Decision.PULLED: 96}), id="appended"),
        pytest.param(HELD[:97], (96, {Decision.PULLED: 96}), id="one token over the last whole block"),
        pytest.param(HELD[:96], (96, {Decision.PULLED: 96}), id="all whole blocks"),
        pytest.param(HELD[:95], (64, {Decision.TRIMMED_PREFIX_DIVERGED: 64}), id="one token less"),
        pytest.param((*HELD[:63], 1), (32, {Decision.BELOW_THRESHOLD: 0}), id="edited in the second block"),
        pytest.param(HELD[:31], (0, {Decision.PREFIX_DIVERGED: 0}), id="shorter than a block"),
        pytest.param((1, *HELD), (0, {Decision.PREFIX_DIVERGED: 0}), id="shifted"),
    ],
)
def test_prefill_reuses_the_common_whole_blocks(prompt: tuple[int, ...], expected: object) -> None:
    assert decision(prompt) == expected


def test_reasons_come_in_their_order() -> None:
    prompt = (*HELD, 1)
    assert decision(prompt, tenant="other") == (0, {Decision.REJECTED: 0})
    assert decision(prompt, adapter=1) == (0, {Decision.PREFIX_DIVERGED: 0})
    assert decision(prompt, local=96) == (96, {Decision.LOCAL_PREFIX_HIT: 0})
    assert decision(prompt, local=64) == (96, {Decision.BELOW_THRESHOLD: 0})
    assert decision(prompt, local=32) == (96, {Decision.PULLED: 64})
    assert decision(prompt, is_gone=True) == (96, {Decision.EXPIRED: 0})
    assert decision(prompt, may_be_gone=True) == (96, {Decision.PULLED: 96, Decision.EXPIRED: 0})


def test_decode_takes_an_equal_prompt_whole() -> None:
    assert decision(HELD, role=Role.DECODE) == (100, {Decision.PULLED: 100})
    assert decision(HELD, role=Role.DECODE, local=96) == (100, {Decision.PULLED: 4})
    assert decision((*HELD, 1), role=Role.DECODE) == (96, {Decision.TRIMMED_PREFIX_DIVERGED: 96})
    assert decision((*HELD[:50], 1), role=Role.DECODE) == (32, {Decision.TRIMMED_PREFIX_DIVERGED: 32})
    assert decision((*HELD, 1), role=Role.DECODE, local=96) == (96, {Decision.LOCAL_PREFIX_HIT: 0})


def test_common_tokens() -> None:
    assert num_common_tokens((1, 2, 3), (1, 2, 4)) == 2
    assert num_common_tokens((1, 2), (1, 2, 4)) == 2
    assert num_common_tokens((), (1,)) == 0


def test_local_hits_are_bounded_by_what_an_engine_has_seen() -> None:
    bounds = CacheBounds()
    bounds.note("p", "t", 0, HELD)
    assert bounds.largest_hit("p", "t", 0, (*HELD, 1)) == 96
    assert bounds.largest_hit("p", "t", 0, HELD[:96]) == 64
    assert bounds.largest_hit("p", "t", 0, (*HELD[:40], 1)) == 32
    assert bounds.largest_hit("p", "other", 0, HELD) == bounds.largest_hit("p", "t", 1, HELD) == 0
    assert bounds.largest_hit("d", "t", 0, HELD) == 0


def answer(*tops: dict[int, float]) -> Answer:
    return Answer(token_ids=tuple(max(top, key=lambda token: top[token]) for top in tops), top=tops)


def test_difference_is_of_the_same_tokens() -> None:
    one = answer({1: -1.0, 2: -2.0, 3: -3.0})
    assert largest_difference(one, answer({2: -2.0, 1: -1.5, 3: -3.0})) == pytest.approx(0.5)
    assert largest_difference(one, answer({1: -1.0, 2: -2.0, 9: -3.00001})) == pytest.approx(0.0, abs=1e-4)
    assert largest_difference(one, answer({1: -1.0, 2: -2.0, 9: -2.5})) == pytest.approx(0.5)


def test_nothing_is_compared_after_noise_has_chosen_another_token() -> None:
    ours = answer({1: -1.0, 2: -1.00001}, {5: -1.0, 6: -4.0})
    theirs = answer({1: -1.00001, 2: -1.0}, {7: -1.0, 8: -2.0})
    assert largest_difference(ours, theirs) == pytest.approx(0.0, abs=1e-4)
