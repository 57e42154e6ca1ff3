"""An idle core that holds blocks waits before its next step, and is woken by its next request or command."""

import queue
import threading
import time

import pytest

from connector.engine.cpu import IdleWait

FOREVER_MS = 30_000


class FakeCore:
    """Named as vLLM's engine core names its loop, its queue and how it takes input: that is how the wait finds them."""

    def __init__(self, wait: IdleWait, num_turns: int = 2) -> None:
        self.input_queue: queue.Queue[str] = queue.Queue()
        self.taken: list[str] = []
        self.engines_running = False
        self.in_step = lambda: None
        self._wait = wait
        self._num_turns = num_turns

    def run_busy_loop(self) -> float:
        """Seconds that some turns of the loop took; each step has nothing to do."""
        start = time.perf_counter()
        for _ in range(self._num_turns):
            self._process_input_queue()
            self._wait.wait()
            self.in_step()
        return time.perf_counter() - start

    def _process_input_queue(self) -> None:
        while not self.input_queue.empty():
            self.taken.append(self.input_queue.get_nowait())


def test_a_new_request_ends_the_wait_and_is_taken_in_the_same_turn() -> None:
    core = FakeCore(IdleWait(FOREVER_MS))
    waiting = threading.Timer(0.05, core.input_queue.put, ["request"])
    waiting.start()
    assert core.run_busy_loop() < 15
    assert core.taken == ["request"]
    waiting.join()


def test_a_request_already_there_is_not_waited_for() -> None:
    core = FakeCore(IdleWait(FOREVER_MS))
    core.in_step = lambda: core.input_queue.put("request")
    assert core.run_busy_loop() < 15
    assert core.taken == ["request"]


def test_a_command_ends_the_wait() -> None:
    wait = IdleWait(FOREVER_MS)
    core = FakeCore(wait)
    commanding = threading.Timer(0.05, wait.interrupt)
    commanding.start()
    assert core.run_busy_loop() < 15
    commanding.join()


def test_a_command_that_came_during_the_step_is_not_waited_for() -> None:
    wait = IdleWait(FOREVER_MS)
    core = FakeCore(wait)
    core.in_step = wait.interrupt
    assert core.run_busy_loop() < 15


def test_an_idle_core_waits_its_time_in_every_turn() -> None:
    assert FakeCore(IdleWait(20), num_turns=4).run_busy_loop() >= 0.045


def test_a_core_whose_last_step_had_work_does_not_wait() -> None:
    wait = IdleWait(FOREVER_MS)
    core = FakeCore(wait, num_turns=1)
    core.in_step = wait.interrupt
    core.run_busy_loop()
    core._process_input_queue()
    core._process_input_queue()


def test_a_core_whose_peers_are_at_work_does_not_keep_them_waiting() -> None:
    """Data parallel ranks run their steps together."""
    core = FakeCore(IdleWait(FOREVER_MS))
    core.engines_running = True
    assert core.run_busy_loop() < 15


@pytest.mark.parametrize("wait_ms", [0, -1])
def test_no_wait_is_configured_on_accelerators(wait_ms: float) -> None:
    assert FakeCore(IdleWait(wait_ms)).run_busy_loop() < 1


def test_without_a_core_in_the_calling_frames_the_step_sleeps() -> None:
    start = time.perf_counter()
    wait = IdleWait(20)
    wait.wait()
    assert time.perf_counter() - start >= 0.015
    wait.interrupt()


def test_a_loop_of_another_shape_is_left_alone() -> None:
    class OtherCore(FakeCore):
        _process_input_queue = None  # type: ignore[assignment]

        def run_busy_loop(self) -> float:
            start = time.perf_counter()
            self._wait.wait()
            return time.perf_counter() - start

    core = OtherCore(IdleWait(20))
    assert core.run_busy_loop() >= 0.015
    assert "_process_input_queue" not in vars(core)
