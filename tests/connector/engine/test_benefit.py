"""Expected benefit: learned from what returned, at which age, and deterministic given that."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.benefit import MEMORY, PRIOR_HAZARD, ReturnOdds, bucket_of, tokens_saved

TTL = 480.0


@pytest.mark.parametrize(
    ("idle_seconds", "bucket"),
    [(0, 0), (0.99, 0), (1, 1), (1.99, 1), (2, 2), (3.99, 2), (4, 3), (480, 9), (512, 10), (1e12, 23)],
)
def test_ages_are_cut_at_powers_of_two(idle_seconds: float, bucket: int) -> None:
    assert bucket_of(idle_seconds) == bucket


def test_before_anything_was_seen_the_longer_idle_are_the_less_likely_to_return() -> None:
    odds = ReturnOdds()
    chances = [odds.curve().chance(idle, TTL - idle) for idle in (0, 2, 10, 60, 300, 470)]
    assert chances == sorted(chances, reverse=True)
    assert len(set(chances)) == len(chances) - 1, "the last two ages share a bucket"
    assert chances[-1] == pytest.approx(PRIOR_HAZARD)


def test_less_time_left_means_fewer_returns() -> None:
    odds = ReturnOdds()
    assert odds.curve().chance(10, 470) > odds.curve().chance(10, 100) > odds.curve().chance(10, 1) > 0


def test_sessions_that_come_back_after_a_minute_are_expected_then_and_not_later() -> None:
    odds = ReturnOdds()
    for _ in range(200):
        odds.observe(50, returned=True)
    assert odds.curve().chance(1, TTL) > 0.99
    assert odds.curve().chance(40, TTL) > 0.95
    assert odds.curve().chance(70, TTL) < odds.curve().chance(40, TTL)


def test_sessions_that_end_unread_are_not_expected() -> None:
    seen, unseen = ReturnOdds(), ReturnOdds()
    for _ in range(200):
        seen.observe(TTL, returned=False)
    assert seen.curve().chance(1, TTL - 1) < 0.15 < unseen.curve().chance(1, TTL - 1)


def test_an_interval_cut_short_says_nothing_of_later_ages() -> None:
    cut, whole = ReturnOdds(), ReturnOdds()
    for _ in range(100):
        cut.observe(5, returned=False)
        whole.observe(TTL, returned=False)
    assert cut.curve().chance(16, TTL - 16) == ReturnOdds().curve().chance(16, TTL - 16)
    assert whole.curve().chance(16, TTL - 16) < cut.curve().chance(16, TTL - 16)


def test_the_estimate_follows_the_traffic() -> None:
    odds = ReturnOdds()
    for _ in range(3 * int(MEMORY)):
        odds.observe(TTL, returned=False)
    before = odds.curve().chance(1, TTL)
    for _ in range(3 * int(MEMORY)):
        odds.observe(1.5, returned=True)
    assert before < 0.01
    assert odds.curve().chance(1, TTL) > 0.7


OBSERVED = st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), max_size=60)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(OBSERVED, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_chance_is_one_grows_with_the_time_left_and_repeats(
    seen: list[tuple[float, bool]], idle: float, remaining: float, more: float
) -> None:
    odds, again = ReturnOdds(), ReturnOdds()
    for age, returned in seen:
        odds.observe(age, returned=returned)
        odds.curve().chance(idle, remaining)  # asking changes nothing
        again.observe(age, returned=returned)
    chance = odds.curve().chance(idle, remaining)
    assert 0 < chance < 1
    assert chance <= odds.curve().chance(idle, remaining + more)
    assert chance == again.curve().chance(idle, remaining)


@pytest.mark.parametrize(
    ("num_tokens", "num_unique", "num_blocks", "saved"),
    [(800, 10, 10, 800), (800, 5, 10, 400), (800, 0, 10, 0), (0, 0, 0, 0)],
)
def test_only_tokens_that_no_other_lease_supplies_are_saved(
    num_tokens: int, num_unique: int, num_blocks: int, saved: float
) -> None:
    assert tokens_saved(num_tokens, num_unique, num_blocks) == saved
