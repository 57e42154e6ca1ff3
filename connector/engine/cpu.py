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
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

    if not isinstance(base_worker.nixl_agent_config, functools.partial):
        base_worker.nixl_agent_config = functools.partial(base_worker.nixl_agent_config, enable_prog_thread=False)


def calm_broadcast(pause_ms: float) -> None:
    from vllm.distributed.device_communicators import shm_broadcast

    pause_seconds = pause_ms / 1e3
    shm_broadcast.sched_yield = lambda: time.sleep(pause_seconds)


class IdleWait:
    """Paces an engine core that steps only because leases are held, and wakes at once for a new request.

    vLLM keeps stepping, at up to 1 kHz, while any request's blocks are held. The core's own input queue is found in the
    calling frames (``EngineCoreProc.run_busy_loop``), since a connector is given no reference to it; without it the
    wait is a plain sleep.
    """

    def __init__(self, wait_ms: float) -> None:
        self._seconds = wait_ms / 1e3
        self._wait: Callable[[float], None] | None = None

    def wait(self) -> None:
        if self._seconds <= 0:
            return
        if self._wait is None:
            self._wait = self._find_wait()
        self._wait(self._seconds)

    def _find_wait(self) -> Callable[[float], None]:
        input_queue = _core_input_queue()
        if input_queue is None:
            logger.info("The engine core's input queue was not found; idle steps are paced by a plain sleep.")
            return time.sleep
        return functools.partial(_wait_for_input, input_queue)


def _wait_for_input(input_queue: Any, seconds: float) -> None:
    with input_queue.not_empty:
        if not input_queue.queue:
            input_queue.not_empty.wait(seconds)


def _core_input_queue() -> Any:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run_busy_loop":
            queue = getattr(frame.f_locals.get("self"), "input_queue", None)
            return queue if hasattr(queue, "not_empty") else None
        frame = frame.f_back  # type: ignore[assignment]  # ends with None
    return None
