"""Which leases have to go: those of the least expected benefit, pinned ones last, and no more than needed."""

import heapq
from collections.abc import Callable, Collection

from connector.engine.lease import Lease
from connector.engine.leases import LeaseTable

Rank = tuple[bool, bool, float, float, int]


class Eviction:
    """One choice among the live leases of a table, but the one at slot ``keep``.

    ``benefit_of`` must not change meanwhile. Ties are broken by the longest idle, then by the slot: a stable order.
    """

    def __init__(self, table: LeaseTable, benefit_of: Callable[[Lease], float], keep: int | None = None) -> None:
        self._table = table
        self._benefit_of = benefit_of
        self._ranks = [self._rank(lease) for lease in table if lease.is_live and lease.slot != keep]
        self._candidates = {rank[-1] for rank in self._ranks}
        heapq.heapify(self._ranks)

    def choose(self, num_blocks: int, wanted: Collection[int] = ()) -> list[Lease]:
        """Leases, retired in the table, without which that many blocks are free; all leases if that frees too few.

        Blocks in ``wanted`` don't count: whoever needs room will use those itself, as cached ones.
        """
        chosen: list[Lease] = []
        num_lacking = num_blocks
        while num_lacking > 0 and self._ranks:
            lease = self._pop()
            if lease is not None:
                chosen.append(lease)
                num_lacking -= self._retire(lease, wanted)
        if num_lacking >= 0:
            return chosen
        return self._spare(chosen, -num_lacking, wanted)

    def _pop(self) -> Lease | None:
        rank = heapq.heappop(self._ranks)
        lease = self._table.at(rank[-1])
        # An entry is stale when the lease's last fellow holder of some block has gone since.
        return lease if lease is not None and rank[-1] in self._candidates and rank == self._rank(lease) else None

    def _retire(self, lease: Lease, wanted: Collection[int]) -> int:
        """How many blocks that frees."""
        self._candidates.discard(lease.slot)
        freed, lone_slots = self._table.retire(lease)
        for slot in lone_slots & self._candidates:
            if (other := self._table.at(slot)) is not None:
                heapq.heappush(self._ranks, self._rank(other))
        return sum(block not in wanted for block in freed)

    def _spare(self, chosen: list[Lease], num_spare: int, wanted: Collection[int]) -> list[Lease]:
        """A late choice may have freed enough alone; of the others the most valuable ones are spared first."""
        leaving: list[Lease] = []
        for lease in reversed(chosen):
            num_held_again = sum(block not in wanted for block in self._table.revive(lease))
            if num_held_again <= num_spare:
                num_spare -= num_held_again
            else:
                self._table.retire(lease)
                leaving.append(lease)
        return leaving[::-1]

    def _rank(self, lease: Lease) -> Rank:
        """The least goes first. One that frees no block by itself goes only when no other frees any."""
        return (lease.pinned, lease.num_unique == 0, self._benefit_of(lease), lease.used_at, lease.slot)
