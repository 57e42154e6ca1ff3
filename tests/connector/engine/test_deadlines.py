"""Each pull is timed from its start by its own deadline, or by the engine's of now."""

import time

import pytest

from connector.engine.deadlines import PullDeadlines


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock.perf_counter)
    return clock


def test_a_pull_without_its_own_deadline_follows_the_engines(clock: Clock) -> None:
    deadlines = PullDeadlines()
    deadlines.start("r", None)
    clock.now += 5
    assert deadlines.passed(5.0) == []
    assert deadlines.passed(4.9) == ["r"]
    assert deadlines.waited_ms("r") == pytest.approx(5000)


@pytest.mark.parametrize(("own", "is_late"), [(2.0, True), (60.0, False)])
def test_a_pulls_own_deadline_outranks_any_of_the_engine(clock: Clock, own: float, is_late: bool) -> None:
    deadlines = PullDeadlines()
    deadlines.start("r", own)
    clock.now += 30
    for engine_seconds in (0.1, 5.0, 3600.0):
        assert (deadlines.passed(engine_seconds) == ["r"]) == is_late
        assert deadlines.seconds("r", engine_seconds) == own


def test_an_ended_pull_is_forgotten(clock: Clock) -> None:
    deadlines = PullDeadlines()
    deadlines.start("r", 1.0)
    deadlines.end("r")
    deadlines.end("never")
    clock.now += 1000
    assert (deadlines.passed(1.0), len(deadlines), "r" in deadlines) == ([], 0, False)
    assert deadlines.waited_ms("r") == 0.0
