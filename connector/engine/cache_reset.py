"""Empties the engine's prefix cache when its operator asks, and answers with what really happened.

vLLM refuses a reset while any block is held (``BlockPool.reset_prefix_cache``, 0.32), and its own HTTP endpoint exists
in development mode only. So the leases go first, by the way every release takes, and the reset is tried at each step
until nothing holds a block or the asker's patience ends. An idle engine core sleeps in its input queue; it is woken by
vLLM's own ``WAKEUP`` message, and kept stepping while a reset is pending.
"""

import logging
import time
from collections import deque
from typing import Any

from connector.engine import guards
from connector.engine.cpu import calling_core
from connector.protocol import CommandDone, LeaseState, ResetCache

logger = logging.getLogger("vllm.backhaul.cache_reset")

MAX_PENDING = 16
REASON = "cache_reset"


class _Asked:
    __slots__ = ("command", "deadline", "num_released")

    def __init__(self, command: ResetCache) -> None:
        self.command = command
        self.deadline = time.monotonic() + command.patience_seconds
        self.num_released: int | None = None


class CacheReset:
    """``ask`` on the link's thread, all else on the scheduler's. ``scheduler`` is ours."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._cache_manager: Any = None
        self._asked: deque[_Asked] = deque()
        self._input_queue: Any = None

    def bind(self, cache_manager: Any) -> None:
        self._cache_manager = cache_manager

    @property
    def is_pending(self) -> bool:
        return bool(self._asked)

    def ask(self, command: ResetCache) -> None:
        """Never blocks; the answer goes to the agent when there is one."""
        if len(self._asked) >= MAX_PENDING:
            self._answer(command, "failed", f"{MAX_PENDING} resets are pending already")
            return
        self._asked.append(_Asked(command))
        self._wake()

    @guards.contained(guards.nothing)
    def learn_queue(self) -> None:
        """At every arrival, until the core's queue is found: only the core's own thread can see it."""
        if self._input_queue is None:
            self._input_queue = getattr(calling_core(), "input_queue", None)

    def _wake(self) -> None:
        if self._input_queue is None:
            return
        from vllm.v1.engine import EngineCoreRequestType

        self._input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))

    @guards.contained(guards.nothing)
    def pump(self) -> None:
        """Once a step; nothing to do costs one look at a deque."""
        if self._asked and self._is_settled(self._asked[0]):
            self._asked.popleft()

    def _is_settled(self, asked: _Asked) -> bool:
        if time.monotonic() > asked.deadline:
            self._answer(asked.command, "failed", self._why_not())
            return True
        if asked.num_released is None:
            asked.num_released = self._release_leases()
        if self._num_used_blocks() or len(self._scheduler.quarantine):
            return False
        if not self._cache_manager.reset_prefix_cache():
            return False
        logger.info("The prefix cache was reset; %d leases were released for it.", asked.num_released)
        self._answer(asked.command, "reset", f"{asked.num_released} leases released")
        return True

    def _release_leases(self) -> int:
        """Pinned ones and handoffs too: their readers recompute, as after any other release."""
        control = self._scheduler.control
        held = [lease for lease in control.table if lease.ending is None]
        for lease in held:
            control.release(lease, LeaseState.RELEASED, REASON)
        return len(held)

    def _num_used_blocks(self) -> int:
        """All but the null block, which vLLM counts as used for ever."""
        pool = self._cache_manager.block_pool
        return int(pool.num_gpu_blocks - pool.get_num_free_blocks()) - 1

    def _why_not(self) -> str:
        load = self._scheduler.reporter
        return (
            f"{self._num_used_blocks()} KV blocks are still in use, by {load.num_active} unfinished requests, "
            f"{len(self._scheduler.control.table)} leases and {len(self._scheduler.quarantine)} late reads"
        )

    def _answer(self, command: ResetCache, outcome: str, detail: str) -> None:
        self._scheduler.reporter.send(CommandDone(command_id=command.command_id, outcome=outcome, detail=detail))
