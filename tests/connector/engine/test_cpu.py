"""An idle core that holds blocks waits, and is woken by its next request."""

import queue
import threading
import time

import pytest

from connector.engine.cpu import IdleWait


class FakeCore:
    """Named as vLLM's engine core names its loop and its queue, which is how the wait finds them."""

    def __init__(self, wait: IdleWait) -> None:
        self.input_queue: queue.Queue[str] = queue.Queue()
        self._wait = wait

    def run_busy_loop(self) -> float:
        start = time.perf_counter()
        self._wait.wait()
        return time.perf_counter() - start


def test_a_new_request_ends_the_wait_at_once() -> None:
    core = FakeCore(IdleWait(30_000))
    waiting = threading.Timer(0.05, core.input_queue.put, ["request"])
    waiting.start()
    assert core.run_busy_loop() < 15
    waiting.join()


def test_a_request_already_there_is_not_waited_for() -> None:
    core = FakeCore(IdleWait(30_000))
    core.input_queue.put("request")
    assert core.run_busy_loop() < 15
    assert core.input_queue.get_nowait() == "request"


def test_an_idle_core_waits_its_time() -> None:
    assert FakeCore(IdleWait(20)).run_busy_loop() >= 0.015


@pytest.mark.parametrize("wait_ms", [0, -1])
def test_no_wait_is_configured_on_accelerators(wait_ms: float) -> None:
    assert FakeCore(IdleWait(wait_ms)).run_busy_loop() < 1


def test_without_a_core_in_the_calling_frames_it_sleeps() -> None:
    start = time.perf_counter()
    IdleWait(20).wait()
    assert time.perf_counter() - start >= 0.015
