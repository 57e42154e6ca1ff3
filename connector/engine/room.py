"""Room for requests: leases go when they hold more than their share, or blocks that a request is about to need.

Nothing here costs anything while there is room. A lease that goes is ordered away in this very step, and its blocks are
free one or two steps later; until then they count as on their way, so that asking again evicts no more.
"""

import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from connector.benefit import ReturnCurve, ReturnOdds, tokens_saved
from connector.engine.demand import BlockDemand
from connector.engine.eviction import MAX_RANKED, Ranking
from connector.engine.lease import Lease, Standing
from connector.engine.leases import LeaseTable
from connector.engine.policy import LivePolicy

logger = logging.getLogger("vllm.backhaul.room")

LOW_WATER_BLOCKS = 4
RANKING_SECONDS = 1.0


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
        self._ranking: Ranking | None = None
        self._ranked_at = 0.0

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

    def note_granted(self, lease: Lease) -> None:
        if self._ranking is not None:
            self._ranking.add(lease)

    def note_pins(self) -> None:
        """Whom an operator has pinned or unpinned is ranked at once."""
        self._ranking = None

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

    def note_scheduled(self, request_id: str) -> None:
        """It got its blocks; should it ask again, then because its pull failed or it was preempted."""
        if self._asked_in_vain[0] == request_id:
            self._asked_in_vain = ("", 0)

    def keep_low_water(self, scheduler_output: Any) -> None:
        """Growing requests find free blocks, so that none is preempted for the sake of a lease."""
        if not self._table.num_live_sessions:
            return
        num_free = int(self._block_pool.get_num_free_blocks())
        if num_free >= LOW_WATER_BLOCKS and not scheduler_output.num_scheduled_tokens:
            return
        self._low_water = max(LOW_WATER_BLOCKS, self._demand.of_running(scheduler_output))
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
        while num_blocks > 0:
            before = self._table.num_live_blocks
            ranking, is_new = self._current_ranking()
            for lease in ranking.choose(num_blocks, wanted, keep):
                logger.info("Evicting lease %s (%d blocks): %s.", lease.lease_id, lease.num_blocks, reason)
                self._order(lease, reason)
            if not ranking.is_used_up or is_new:
                return
            self._ranking = None
            num_blocks -= before - self._table.num_live_blocks

    def _current_ranking(self) -> tuple[Ranking, bool]:
        """Many leases are ranked once a second at most; with whether it was now."""
        now = time.perf_counter()
        if self._ranking is None or len(self._table) <= MAX_RANKED or now - self._ranked_at > RANKING_SECONDS:
            curve = self.odds.curve()
            self._ranking = Ranking(self._table, lambda standing: _benefit(standing, curve, now))
            self._ranked_at = now
            return self._ranking, True
        return self._ranking, False


def _benefit(standing: Standing, curve: ReturnCurve, now: float) -> float:
    """In tokens that need no second computing."""
    num_tokens = tokens_saved(standing.num_tokens, standing.num_unique, standing.num_blocks)
    return num_tokens * curve.chance(now - standing.used_at, max(0.0, standing.deadline - now))
