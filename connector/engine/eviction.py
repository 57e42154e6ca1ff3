"""Which leases have to go: those of the least expected benefit, pinned ones last, and no more than needed."""

import heapq
from collections.abc import Callable, Collection

from connector.engine.lease import Lease, Standing
from connector.engine.leases import LeaseTable

Rank = tuple[bool, bool, float, float, int]
MAX_RANKED = 256
"""Enough for many choices, and few enough to keep."""


class Ranking:
    """The live leases that would go first, by a benefit as of one moment; good for several choices in a row.

    Ties are broken by the longest idle, then by the slot, so the order is stable. A lease whose standing has changed
    since it was ranked is ranked anew when its turn comes.
    """

    def __init__(self, table: LeaseTable, benefit_of: Callable[[Standing], float]) -> None:
        self._table = table
        self._benefit_of = benefit_of
        self._ranks = heapq.nsmallest(MAX_RANKED, (self._rank(lease) for lease in table if lease.is_live))

    @property
    def is_used_up(self) -> bool:
        return not self._ranks

    def add(self, lease: Lease) -> None:
        """One that was granted since."""
        heapq.heappush(self._ranks, self._rank(lease))

    def choose(self, num_blocks: int, wanted: Collection[int] = (), keep: Lease | None = None) -> list[Lease]:
        """Leases, retired in the table, without which that many blocks are free; all ranked ones if that is too few.

        Blocks in ``wanted`` don't count: whoever needs room will use those itself, as cached ones.
        """
        chosen: dict[int, Lease] = {}
        num_lacking = num_blocks
        is_kept_ranked = False
        while num_lacking > 0 and self._ranks:
            rank = heapq.heappop(self._ranks)
            lease = self._table.at(rank[-1])
            if lease is None or not lease.is_live or lease.slot in chosen:
                continue
            if lease is keep:
                is_kept_ranked = True
            elif rank != self._rank(lease):
                self.add(lease)
            else:
                chosen[lease.slot] = lease
                num_lacking -= self._retire(lease, wanted)
        leaving = list(chosen.values())
        if num_lacking <= 0:
            leaving = self._spare(leaving, -num_lacking, wanted)
        if keep is not None and is_kept_ranked:
            self.add(keep)
        return leaving

    def _retire(self, lease: Lease, wanted: Collection[int]) -> int:
        """How many blocks that frees. Who is now the only holder of some has more to lose."""
        freed, lone_slots = self._table.retire(lease)
        for slot in lone_slots:
            other = self._table.at(slot)
            if other is not None and other.is_live:
                self.add(other)
        return sum(block not in wanted for block in freed)

    def _spare(self, chosen: list[Lease], num_spare: int, wanted: Collection[int]) -> list[Lease]:
        """A late choice may have freed enough alone; of the others the most valuable ones are spared first."""
        leaving: list[Lease] = []
        for lease in reversed(chosen):
            num_held_again = sum(block not in wanted for block in self._table.revive(lease))
            if num_held_again <= num_spare:
                num_spare -= num_held_again
                self.add(lease)
            else:
                self._table.retire(lease)
                leaving.append(lease)
        return leaving[::-1]

    def _rank(self, lease: Lease) -> Rank:
        """The least goes first. One that frees no block by itself goes only when no other frees any."""
        standing = lease.standing()
        return (
            standing.is_pinned,
            standing.num_unique == 0,
            self._benefit_of(standing),
            standing.used_at,
            standing.slot,
        )
