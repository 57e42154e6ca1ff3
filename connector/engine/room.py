"""Room for requests: leases go when they hold more than their share, or blocks that a request is about to need.

Nothing here costs anything while there is room. A lease that goes is ordered away in this very step, and its blocks are
free one or two steps later; until then they count as on their way, so that asking again evicts no more.
"""

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from connector.engine.benefit import ReturnOdds, tokens_saved
from connector.engine.demand import BlockDemand
from connector.engine.eviction import Eviction
from connector.engine.lease import Lease
from connector.engine.leases import LeaseTable
from connector.engine.policy import LivePolicy

logger = logging.getLogger("vllm.backhaul.room")

LOW_WATER_BLOCKS = 4


class LeaseRoom:
    """``order`` is given each lease that was chosen, and why; it is retired in the table already."""

    def __init__(
        self, table: LeaseTable, policy: LivePolicy, demand: BlockDemand, order: Callable[[Lease, str], None]
    ) -> None:
        self.odds = ReturnOdds()
        self._table = table
        self._policy = policy
        self._order = order
        self._block_pool: Any = None
        self._demand = demand
        self._asked_in_vain: tuple[str, int] = ("", 0)
        self._low_water = LOW_WATER_BLOCKS

    def bind(self, block_pool: Any) -> None:
        self._block_pool = block_pool
        self._demand.bind(block_pool)

    # ------------------------------------------------ the share that leases may hold

    @property
    def limit_blocks(self) -> int:
        return int(self._policy.values.pinned_kv_limit * self._block_pool.num_gpu_blocks)

    def can_stay(self, lease: Lease) -> bool:
        """Whether it fits the limit together with the pinned ones: that is what stays if all others go."""
        blocks = set(lease.blocks())
        if self._table.num_pinned:
            blocks.update(*(other.blocks() for other in self._table if other.pinned and other.is_live))
        return len(blocks) <= self.limit_blocks

    def enforce_limit(self, keep: Lease | None = None) -> None:
        self._evict(self._table.num_live_blocks - self.limit_blocks, "pinned_kv_limit", keep=keep)

    # ------------------------------------------------ what requests need

    def make_room(self, request: Any, num_local_tokens: int) -> None:
        """A request that can't be scheduled for leased blocks gets them, before it has to wait for a TTL.

        One that asks again although its blocks are free lacks some that vLLM reserves for others: a few more each time.
        """
        if not self._table.num_live_sessions:
            return
        num_lacking, wanted = self._demand.of_waiting(request, num_local_tokens)
        num_lacking -= self._num_on_their_way
        if num_lacking <= 0 and not self._num_on_their_way:
            request_id, num_times = self._asked_in_vain
            num_times = num_times + 1 if request_id == request.request_id else 0
            self._asked_in_vain = (request.request_id, num_times)
            num_lacking = LOW_WATER_BLOCKS if num_times else 0
        self._evict(num_lacking, "pressure", wanted)

    def keep_low_water(self, scheduler_output: Any) -> None:
        """Growing requests find free blocks, so that none is preempted for the sake of a lease."""
        if not self._table.num_live_sessions:
            return
        self._low_water = max(LOW_WATER_BLOCKS, self._demand.of_running(scheduler_output))
        num_free = int(self._block_pool.get_num_free_blocks())
        self._evict(self._low_water - num_free - self._num_on_their_way, "pressure")

    def relieve(self) -> bool:
        """vLLM is about to preempt a request: whether it should wait for blocks of leases instead."""
        if not self._table.num_ending and self._table.num_live_sessions:
            self._evict(self._low_water, "pressure")
        return self._table.num_ending > 0

    @property
    def _num_on_their_way(self) -> int:
        return self._table.num_blocks - self._table.num_live_blocks

    # ------------------------------------------------ who goes

    def _evict(self, num_blocks: int, reason: str, wanted: Collection[int] = (), keep: Lease | None = None) -> None:
        if num_blocks <= 0:
            return
        now = time.perf_counter()
        eviction = Eviction(self._table, lambda lease: self._benefit(lease, now), keep.slot if keep else None)
        for lease in eviction.choose(num_blocks, wanted):
            logger.info("Evicting lease %s (%d blocks): %s.", lease.lease_id, len(lease.blocks()), reason)
            self._order(lease, reason)

    def _benefit(self, lease: Lease, now: float) -> float:
        """In tokens that need no second computing."""
        num_tokens = tokens_saved(lease.num_tokens, lease.num_unique, len(lease.blocks()))
        return num_tokens * self.odds.chance(now - lease.used_at, max(0.0, lease.deadline - now))
