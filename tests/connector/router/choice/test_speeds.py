"""Running estimates: robust, bounded, forgotten with an incarnation or with time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.router.choice.prefixes import MAX_ENGINES, MAX_PROMPTS, PrefixMemory
from connector.router.choice.speeds import FRESH_SECONDS, Estimate, Learned, Speeds, pair_key


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_prior_until_measured_and_one_outlier_moves_nothing() -> None:
    estimate = Estimate(1.0)
    assert estimate.value == 1.0
    for _ in range(5):
        estimate.add(0.1, 0.0)
    estimate.add(900.0, 0.0)
    assert estimate.value == pytest.approx(0.1)


@given(st.lists(st.floats(), max_size=40))
def test_whatever_is_measured_the_estimate_stays_sane(samples: list[float]) -> None:
    estimate = Estimate(1e-4)
    for sample in samples:
        estimate.add(sample, 0.0)
    assert math.isfinite(estimate.value)
    assert 1e-7 <= estimate.value <= 0.1 * (1 + 1e-9)


@given(st.floats(1e-3, 1e3), st.integers(15, 40))
def test_estimate_follows_what_changed_for_good(sample: float, count: int) -> None:
    estimate = Estimate(1.0)
    for _ in range(40):
        estimate.add(5.0, 0.0)
    for _ in range(count):
        estimate.add(sample, 0.0)
    assert estimate.value == pytest.approx(sample)


def test_unmeasured_ones_are_taken_to_be_as_the_others() -> None:
    learned = Learned(1.0, 10)
    for _ in range(5):
        learned.learn("a", "1", 0.2)
    assert learned.of("a", "1") == learned.of("b", "1") == pytest.approx(0.2)


def test_restart_forgets() -> None:
    learned = Learned(1.0, 10)
    for _ in range(20):
        learned.learn("slow", "1", 9.0)
    for _ in range(20):
        learned.learn("fast", "1", 0.1)
    assert learned.of("slow", "1") == pytest.approx(9.0)
    assert learned.of("fast", "2") == learned.of("unknown", "1")
    learned.learn("slow", "2", 0.1)
    assert learned.of("slow", "2") < 9.0
    assert learned.of("slow", "1") != pytest.approx(9.0)


def test_slow_engine_that_nobody_asked_for_long_is_tried_again() -> None:
    clock = Clock()
    learned = Learned(1.0, 10, clock)
    for _ in range(20):
        learned.learn("slow", "1", 9.0)
    for _ in range(20):
        learned.learn("fast", "1", 0.1)
    assert learned.of("slow", "1") == pytest.approx(9.0)
    clock.now += FRESH_SECONDS + 1
    for _ in range(3):
        learned.learn("fast", "1", 0.1)
    assert learned.of("slow", "1") == learned.of("fast", "1") == pytest.approx(0.1)


def test_memory_is_bounded() -> None:
    learned = Learned(1.0, 10)
    for number in range(1000):
        learned.learn(f"e{number}", "1", 0.1)
    assert len(learned) == 10
    speeds = Speeds()
    for number in range(5000):
        speeds.transfer.learn(pair_key(f"p{number}", "d0"), "1>1", 1e-5)
    assert len(speeds.transfer) == 4096


def chain(*hashes: str) -> tuple[str, ...]:
    return ("#0", *hashes)


def test_prefix_memory_finds_the_longest_and_forgets_with_the_process() -> None:
    memory = PrefixMemory()
    memory.note("p0", "1", "b", 200)
    memory.note("p0", "1", "d", 400)
    assert memory.num_local("p0", "1", chain("a", "b", "c")) == 200
    assert memory.num_local("p0", "1", chain("a", "b", "c", "d", "e")) == 400
    assert memory.num_local("p0", "1", chain("x")) == memory.num_local("p1", "1", chain("b")) == 0
    assert memory.num_local("p0", "2", chain("b")) == 0
    memory.note("p0", "2", "z", 10)
    assert memory.num_local("p0", "1", chain("b")) == 0


def test_engine_without_a_prefix_cache_is_found_out() -> None:
    memory = PrefixMemory()
    memory.note("p0", "1", "b", 1000)
    for _ in range(5):
        memory.note_found("p0", "1", 0.0)
    assert memory.remembered("p0", "1", chain("b")) == 1000
    assert memory.num_local("p0", "1", chain("b")) <= 1


def test_prefix_memory_is_bounded() -> None:
    memory = PrefixMemory()
    for number in range(MAX_PROMPTS + 5):
        memory.note("p0", "1", f"h{number}", 10)
    assert memory.num_local("p0", "1", chain("h0")) == 0
    assert memory.num_local("p0", "1", chain(f"h{MAX_PROMPTS + 4}")) == 10
    for number in range(MAX_ENGINES):
        memory.note(f"q{number}", "1", "h", 10)
    assert memory.num_local("p0", "1", chain(f"h{MAX_PROMPTS + 4}")) == 0
