"""Blocks that a READ past its deadline may still write to: held back from the pool until it has really ended."""

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from connector.engine import guards

if TYPE_CHECKING:
    from connector.engine.metadata import WorkerReport

logger = logging.getLogger("vllm.backhaul.quarantine")


class BlockQuarantine:
    """Scheduler side. A posted READ can't be cancelled: 264 of 264 regions were overwritten 3 s after a release."""

    def __init__(self) -> None:
        self._cache_manager: Any = None
        self._open_ranks: Counter[str] = Counter()
        self._held: dict[str, list[Any]] = {}
        self._not_held: set[str] = set()

    def __len__(self) -> int:
        return len(self._held) + len(self._not_held)

    @property
    def num_blocks(self) -> int:
        return sum(map(len, self._held.values()))

    def bind(self, cache_manager: Any) -> None:
        self._cache_manager = cache_manager

    def follow(self, output: Any, report: "WorkerReport") -> None:
        """``output`` is what vLLM is about to act on. A request whose blocks can't be held has not finished yet, so
        that vLLM keeps them itself, until its READs have ended."""
        self.note(report.quarantined)
        for request_id in output.failed_recving or ():
            if not self._is_held(request_id):
                self._not_held.add(request_id)
        self.end(report.ended)
        self._let_finish(output)

    def _is_not_held(self, request_id: str) -> bool:
        return self._open_ranks[request_id] <= 0

    @guards.contained(_is_not_held)
    def _is_held(self, request_id: str) -> bool:
        self.hold(request_id)
        return True

    def _let_finish(self, output: Any) -> None:
        """vLLM has noted the failure already; only the end of the receive is told later."""
        if not self._not_held:
            return
        waiting = {request_id for request_id in self._not_held if self._open_ranks[request_id] > 0}
        over, self._not_held = self._not_held - waiting, waiting
        output.finished_recving = ((output.finished_recving or set()) | over) - waiting

    def note(self, request_ids: list[str]) -> None:
        """One entry per rank whose READ is late."""
        self._open_ranks.update(request_ids)

    def hold(self, request_id: str) -> None:
        """Called when vLLM learns that the pull failed, before it frees the blocks; a reference of ours keeps them."""
        if self._open_ranks[request_id] <= 0:
            del self._open_ranks[request_id]
            return
        groups = self._cache_manager.get_blocks(request_id).blocks
        blocks = [block for group in groups for block in group if not block.is_null]
        self._cache_manager.block_pool.touch(blocks)
        self._held[request_id] = blocks
        logger.warning("Quarantined %d KV blocks of %s until its READ has ended.", len(blocks), request_id)

    def end(self, request_ids: list[str]) -> None:
        """One entry per rank whose late READ has ended; the last one returns the blocks, exactly once."""
        for request_id in request_ids:
            self._open_ranks[request_id] -= 1
            if self._open_ranks[request_id] > 0:
                continue
            del self._open_ranks[request_id]
            blocks = self._held.pop(request_id, None)
            if blocks is not None:
                self._cache_manager.block_pool.free_blocks(reversed(blocks))
                logger.info("Returned %d quarantined KV blocks of %s.", len(blocks), request_id)
