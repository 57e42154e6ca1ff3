"""What only engines on CPUs need: two busy loops calmed, and idle steps paced by a wait that new work interrupts."""

import functools
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from connector.engine.options import EngineOptions

logger = logging.getLogger("vllm.backhaul.cpu")


def apply_cpu_options(options: EngineOptions) -> None:
    """Stops two busy loops that starve small CPU machines; nothing happens on accelerators.

    NIXL's progress thread spins at a full core; ours polls every ``idle_poll_ms`` instead. vLLM's broadcast spins on
    ``sched_yield``, which Linux 6.18 was seen to starve for over a minute.
    """
    if options.idle_poll_ms > 0:
        stop_progress_thread()
    if options.cpu_yield_ms > 0:
        calm_broadcast(options.cpu_yield_ms)


def stop_progress_thread() -> None:
    from connector.engine import base_classes  # needs vLLM

    module = base_classes.AGENT_CONFIG_MODULE
    if not isinstance(module.nixl_agent_config, functools.partial):
        module.nixl_agent_config = functools.partial(module.nixl_agent_config, enable_prog_thread=False)


SPIN_SECONDS = 0.001
"""How long a reader of vLLM's broadcast looks by itself before it naps until the writer notifies it."""
NAP_MS = 2
"""How long it naps at most. A notification can get lost: the writer's socket holds one, learns late that it was taken,
and drops the next one silently. vLLM outlives that by spinning for a second, and then looks every 5 s only."""


def calm_broadcast(pause_ms: float) -> None:
    """vLLM's readers spin for a second after each message: on an engine that steps now and then, for ever."""
    from vllm.distributed.device_communicators import shm_broadcast

    pause_seconds = pause_ms / 1e3
    shm_broadcast.sched_yield = lambda: time.sleep(pause_seconds)
    condition = shm_broadcast.SpinCondition
    if not hasattr(condition.wait, "stock"):
        condition.wait = _napping(condition.wait)


def _napping(stock: Callable[..., None]) -> Callable[..., None]:
    """``SpinCondition.wait`` that naps where vLLM's spins. A method, since readers may exist already when we load."""

    @functools.wraps(stock)
    def wait(condition: Any, timeout_ms: int | None = None) -> None:
        if not SPIN_SECONDS < time.monotonic() - condition.last_read <= condition.busy_loop_s:
            stock(condition, timeout_ms)
        elif condition.local_notify_socket in dict(condition.poller.poll(NAP_MS)):
            condition.local_notify_socket.recv()

    wait.stock = stock  # type: ignore[attr-defined]
    return wait


class IdleWait:
    """Paces an engine core that steps only because blocks are held, and wakes at once for a new request.

    vLLM keeps stepping, at up to 1 kHz, while any request's blocks are held. The wait happens where the core's loop
    takes in requests, so that one which ends it is scheduled in the very next step. A connector is given no reference
    to the core: it is found in the calling frames (``EngineCoreProc.run_busy_loop``). Without it, or where its loop
    has another shape, the step itself sleeps.
    """

    def __init__(self, wait_ms: float) -> None:
        self._seconds = wait_ms / 1e3
        self._is_bound = False
        self._input_queue: Any = None
        self._is_due = False
        self._is_interrupted = False

    def wait(self) -> None:
        """Called in a step that had nothing to do: the core waits before its next one."""
        if self._seconds <= 0:
            return
        if not self._is_bound:
            self._is_bound = True
            self._bind()
        if self._input_queue is None:
            time.sleep(self._seconds)
        else:
            self._is_due = True

    def interrupt(self) -> None:
        """Any thread: there is something for the next step to do. Not lost if the wait has not begun yet."""
        self._is_interrupted = True
        if self._input_queue is not None:
            with self._input_queue.not_empty:
                self._input_queue.not_empty.notify_all()

    def _bind(self) -> None:
        core = calling_core()
        if core is None:
            logger.info("The engine core's loop was not found; idle steps are paced by a plain sleep.")
            return
        self._input_queue = core.input_queue
        core._process_input_queue = functools.partial(self._take_input, core, core._process_input_queue)

    def _take_input(self, core: Any, stock: Callable[[], None]) -> None:
        if self._is_due and not getattr(core, "engines_running", False):
            with self._input_queue.not_empty:
                if not self._input_queue.queue and not self._is_interrupted:
                    self._input_queue.not_empty.wait(self._seconds)
        self._is_due = self._is_interrupted = False
        stock()


def calling_core() -> Any:
    """The engine core whose loop is running this thread, if it takes its input as 0.21 to 0.32 do."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run_busy_loop":
            core = frame.f_locals.get("self")
            has_shape = hasattr(getattr(core, "input_queue", None), "not_empty")
            return core if has_shape and callable(getattr(core, "_process_input_queue", None)) else None
        frame = frame.f_back  # type: ignore[assignment]  # ends with None
    return None
