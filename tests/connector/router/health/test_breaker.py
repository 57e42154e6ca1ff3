"""When an engine is put out of use, for how long, and how it comes back."""

import pytest

from connector.router.health.breaker import (
    CALM_SECONDS,
    DOUBT_SECONDS,
    LONGEST_EJECTION_SECONDS,
    TRIAL_SECONDS,
    Breaker,
    Signal,
    signal_of_status,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker("d0", clock)


def seconds_ejected(breaker: Breaker, clock: Clock) -> float:
    """Until a trial is let through, in steps of a tenth of a second."""
    began = clock.now
    while breaker.is_ejected:
        clock.now += 0.1
    return round(clock.now - began, 1)


@pytest.mark.parametrize("signal", [Signal.CONNECT, Signal.SILENT])
def test_engine_that_serves_nobody_is_ejected_at_once(breaker: Breaker, signal: Signal) -> None:
    breaker.fail(signal)
    assert breaker.is_ejected


@pytest.mark.parametrize("signal", [Signal.RESET, Signal.STATUS, Signal.TRUNCATED])
def test_other_failures_eject_when_they_come_in_a_row(breaker: Breaker, signal: Signal) -> None:
    for _ in range(10):
        breaker.fail(signal)
        breaker.fail(signal)
        breaker.succeed()
    assert not breaker.is_ejected
    for _ in range(3):
        breaker.fail(signal)
    assert breaker.is_ejected


def test_each_ejection_is_twice_as_long_up_to_a_minute(breaker: Breaker, clock: Clock) -> None:
    taken = []
    for _ in range(8):
        breaker.fail(Signal.CONNECT)
        taken.append(seconds_ejected(breaker, clock))
        breaker.start()
    assert taken == pytest.approx([1, 2, 4, 8, 16, 32, LONGEST_EJECTION_SECONDS, LONGEST_EJECTION_SECONDS], abs=0.11)


def test_failures_of_what_was_in_flight_make_no_second_ejection(breaker: Breaker, clock: Clock) -> None:
    for _ in range(50):
        breaker.fail(Signal.RESET)
    assert seconds_ejected(breaker, clock) == pytest.approx(1, abs=0.11)


def test_one_trial_at_a_time_and_its_success_ends_the_ejection(breaker: Breaker, clock: Clock) -> None:
    breaker.fail(Signal.CONNECT)
    seconds_ejected(breaker, clock)
    breaker.start()
    assert breaker.is_ejected
    breaker.succeed()
    assert not breaker.is_ejected
    assert breaker.is_closed


def test_trial_that_nobody_hears_of_again_lets_the_next_one_through(breaker: Breaker, clock: Clock) -> None:
    breaker.fail(Signal.CONNECT)
    seconds_ejected(breaker, clock)
    breaker.start()
    assert seconds_ejected(breaker, clock) == pytest.approx(TRIAL_SECONDS, abs=0.11)


@pytest.mark.parametrize(("calm", "next_seconds"), [(CALM_SECONDS - 1, 2), (CALM_SECONDS + 1, 1)])
def test_engine_that_was_well_for_long_begins_anew(
    breaker: Breaker, clock: Clock, calm: float, next_seconds: float
) -> None:
    breaker.fail(Signal.CONNECT)
    seconds_ejected(breaker, clock)
    breaker.succeed()
    clock.now += calm
    breaker.fail(Signal.CONNECT)
    assert seconds_ejected(breaker, clock) == pytest.approx(next_seconds, abs=0.11)


def test_engine_that_returns_is_avoided_for_a_moment_and_then_tried(breaker: Breaker, clock: Clock) -> None:
    breaker.doubt()
    assert seconds_ejected(breaker, clock) == pytest.approx(DOUBT_SECONDS, abs=0.11)
    assert not breaker.is_closed
    breaker.succeed()
    assert breaker.is_closed


def test_doubt_shortens_no_ejection(breaker: Breaker, clock: Clock) -> None:
    for _ in range(3):
        breaker.fail(Signal.CONNECT)
        seconds_ejected(breaker, clock)
    breaker.fail(Signal.CONNECT)
    breaker.doubt()
    assert seconds_ejected(breaker, clock) > DOUBT_SECONDS + 1


def test_sign_of_life_undoes_no_failure_and_ends_no_ejection(breaker: Breaker, clock: Clock) -> None:
    for _ in range(3):
        assert not breaker.is_ejected
        breaker.fail(Signal.STATUS)
        breaker.hear()
    assert breaker.is_ejected
    clock.now += LONGEST_EJECTION_SECONDS
    breaker.hear()
    assert not breaker.is_closed
    breaker.succeed()
    assert breaker.is_closed
    assert not breaker.is_suspect


def test_each_ejection_is_told_once(breaker: Breaker, clock: Clock) -> None:
    told: list[Signal] = []
    breaker.on_ejection = told.append
    for _ in range(5):
        breaker.fail(Signal.STATUS)
    seconds_ejected(breaker, clock)
    breaker.fail(Signal.CONNECT)
    assert told == [Signal.STATUS, Signal.CONNECT]


@pytest.mark.parametrize(
    ("status", "asks_to_wait", "signal"),
    [
        (200, False, None),
        (400, False, None),
        (404, True, None),
        (429, True, None),
        (429, False, None),
        (503, True, None),
        (503, False, Signal.STATUS),
        (500, True, Signal.STATUS),
        (502, False, Signal.STATUS),
    ],
)
def test_being_busy_or_refusing_is_no_sickness(status: int, asks_to_wait: bool, signal: Signal | None) -> None:
    assert signal_of_status(status, asks_to_wait=asks_to_wait) is signal
