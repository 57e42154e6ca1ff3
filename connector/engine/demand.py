"""How many KV blocks the requests of this engine are about to need: what leases must make room for, and no more."""

from collections.abc import Collection
from typing import Any

NONE_CACHED: frozenset[int] = frozenset()


class BlockDemand:
    """Blocks as vLLM's scheduler will ask its pool for them; exact for one cache group, else an upper bound."""

    def __init__(self, block_size: int, num_groups: int) -> None:
        self._block_pool: Any = None
        self._block_size = block_size
        self._num_groups = num_groups
        self._requests: dict[str, Any] = {}

    def bind(self, block_pool: Any) -> None:
        self._block_pool = block_pool

    def of_waiting(self, request: Any, num_local_tokens: int) -> tuple[int, Collection[int]]:
        """(free blocks that it lacks, blocks of others that it will use as cached ones) before it can be scheduled.

        vLLM takes a cached block out of the free ones too, unless someone holds it: those are found by their hashes,
        only when the free blocks would not do anyway.
        """
        num_free = int(self._block_pool.get_num_free_blocks())
        num_needed = -(-(int(request.num_tokens) + 1) // self._block_size) * self._num_groups
        if num_needed <= num_free or self._num_groups > 1:
            return num_needed - num_free, NONE_CACHED
        held = self._held_blocks(request.block_hashes[: num_local_tokens // self._block_size])
        return num_needed - len(held) - num_free, held

    def _held_blocks(self, hashes: Any) -> frozenset[int]:
        cached = (self._block_pool.get_cached_block(block_hash, [0]) for block_hash in hashes)
        return frozenset(blocks[0].block_id for blocks in cached if blocks and blocks[0].ref_cnt > 0)

    # ------------------------------------------------ running requests

    def arrived(self, request: Any) -> None:
        self._requests[request.request_id] = request

    def left(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def of_running(self, scheduler_output: Any) -> int:
        """Free blocks that running requests may need at the next step: one each, and the rest of split prompts."""
        scheduled = scheduler_output.num_scheduled_tokens
        num_left = 0
        if scheduler_output.total_num_scheduled_tokens > len(scheduled):
            for request_id, num_scheduled in scheduled.items():
                request = self._requests.get(request_id)
                if request is not None:
                    # vLLM counts what it schedules as computed only after this hook.
                    num_left += max(0, int(request.num_tokens - request.num_computed_tokens) - num_scheduled)
        return len(scheduled) + -(-num_left // self._block_size) * self._num_groups
