"""Races are drawn from a seed, on both sides of the read, in both directions, with either prefill engine."""

from tests.load.correctness.races import OFFSETS_MS, draw_race


def test_same_seed_gives_the_same_race() -> None:
    assert draw_race(5) == draw_race(5)
    assert draw_race(5) != draw_race(6)


def test_releases_come_before_and_after_the_leg_is_posted() -> None:
    races = [draw_race(seed) for seed in range(200)]
    assert {race.reader for race in races} == {"prefill", "decode"}
    assert {race.caches_prefill for race in races} == {False, True}
    assert OFFSETS_MS[0] <= min(race.offset_ms for race in races) < 0 < max(race.offset_ms for race in races)
