"""Every lease this engine holds, and which distinct KV blocks they hold. Scheduler thread only, except reads.

Each figure that a step or a report needs is counted when a lease comes, ends or goes, so that none needs a scan.
"""

from array import array
from collections.abc import Callable, Iterator

from connector.engine.lease import Lease
from connector.engine.slot_index import NUM_SLOTS, SlotIndex


class LeaseTable:
    """Leases at the slots of their fence words, with one holder count a KV block.

    A lease is live until its release is ordered (``retire``), and held until its blocks are free (``remove``).
    """

    def __init__(self) -> None:
        self._leases: list[Lease | None] = [None] * NUM_SLOTS
        self._by_key = tuple(SlotIndex(NUM_SLOTS) for _ in range(3))
        self._by_session = SlotIndex(NUM_SLOTS)
        self._num_holders = array("H")
        self._num_live_holders = array("H")
        self._xor_of_live_slots = array("H")
        """The slot of a block's only live holder, where there is one only."""
        self._num_held = 0
        self.num_blocks = 0
        """Distinct KV blocks under lease; a block shared by two leases counts once."""
        self.num_live_blocks = 0
        self.num_ending = 0
        self.num_session_leases = 0
        self.num_live_sessions = 0
        self.num_pinned = 0
        self.num_unread_blocks = 0

    def bind(self, num_gpu_blocks: int) -> None:
        for counts in (self._num_holders, self._num_live_holders, self._xor_of_live_slots):
            counts.frombytes(bytes(2 * (num_gpu_blocks - len(counts))))

    def __len__(self) -> int:
        return self._num_held

    def __iter__(self) -> Iterator[Lease]:
        return iter([lease for lease in tuple(self._leases) if lease is not None])

    def at(self, slot: int) -> Lease | None:
        return self._leases[slot]

    # ------------------------------------------------ finding

    def find(self, key: str) -> Lease | None:
        """By lease id, engine request id, or the id of the turn that made it (its newest lease)."""
        for index, matches in zip(self._by_key, (_is_lease, _is_request, _is_turn), strict=True):
            if (lease := self._first(index, key, matches)) is not None:
                return lease
        return None

    def _first(self, index: SlotIndex, key: str, matches: Callable[[Lease, str], bool]) -> Lease | None:
        for slot in index.candidates(key):
            lease = self._leases[slot]
            if lease is not None and matches(lease, key):
                return lease
        return None

    def of_session(self, tenant: str, session_id: str) -> list[Lease]:
        """The session's live leases."""
        leases = (self._leases[slot] for slot in self._by_session.candidates((tenant, session_id)))
        return [
            lease
            for lease in leases
            if lease is not None and lease.is_live and lease.tenant == tenant and lease.session_id == session_id
        ]

    # ------------------------------------------------ coming and going

    def add(self, lease: Lease) -> None:
        slot = lease.slot
        lease_id, session_id, turn_id = lease.texts[:3]
        for index, key in zip(self._by_key, (lease_id, lease.request_id, turn_id), strict=True):
            index.add(key, slot)
        self._by_session.add((lease.tenant, session_id), slot)
        self._leases[slot] = lease
        self._num_held += 1
        self.num_session_leases += not lease.is_handoff
        for block in lease.blocks():
            self.num_blocks += self._num_holders[block] == 0
            self._num_holders[block] += 1
        if lease.ending is None:
            self._count_live(lease)
        else:
            self.num_ending += 1

    def retire(self, lease: Lease) -> tuple[list[int], set[int]]:
        """Its release is ordered. Returns the blocks that no live lease holds now, and the slots of those leases that
        became the only live holders of a block."""
        self.num_ending += 1
        self.num_live_sessions -= not lease.is_handoff
        self.num_pinned -= lease.pinned
        self.num_unread_blocks -= self._unread(lease)
        slot, freed, lone = lease.slot, [], set()
        live, xor = self._num_live_holders, self._xor_of_live_slots
        for block in lease.blocks():
            live[block] -= 1
            xor[block] ^= slot
            if live[block] == 0:
                freed.append(block)
            elif live[block] == 1:
                lone.add(xor[block])
                self._add_unique(xor[block], 1)
        self.num_live_blocks -= len(freed)
        lease.num_unique = 0
        return freed, lone

    def revive(self, lease: Lease) -> list[int]:
        """Takes back a ``retire`` whose order has not gone out. Returns the blocks that had no live holder."""
        self.num_ending -= 1
        return self._count_live(lease)

    def remove(self, request_id: str) -> Lease | None:
        """Its blocks are free."""
        lease = self._first(self._by_key[1], request_id, _is_request)
        if lease is None:
            return None
        if lease.ending is None:
            self.retire(lease)
        self.num_ending -= 1
        slot = lease.slot
        lease_id, session_id, turn_id = lease.texts[:3]
        for index, key in zip(self._by_key, (lease_id, request_id, turn_id), strict=True):
            index.discard(key, slot)
        self._by_session.discard((lease.tenant, session_id), slot)
        self._leases[slot] = None
        self._num_held -= 1
        self.num_session_leases -= not lease.is_handoff
        for block in lease.blocks():
            self._num_holders[block] -= 1
            self.num_blocks -= self._num_holders[block] == 0
        return lease

    # ------------------------------------------------ while it lasts

    def pin(self, lease: Lease, *, pinned: bool) -> None:
        self.num_pinned += pinned - lease.pinned
        lease.pinned = pinned

    def note_read(self, lease: Lease, now: float) -> None:
        if lease.ending is None:
            self.num_unread_blocks -= self._unread(lease)
        lease.num_reads += 1
        lease.used_at = now

    def _count_live(self, lease: Lease) -> list[int]:
        self.num_live_sessions += not lease.is_handoff
        self.num_pinned += lease.pinned
        self.num_unread_blocks += self._unread(lease)
        slot, unique = lease.slot, []
        live, xor = self._num_live_holders, self._xor_of_live_slots
        for block in lease.blocks():
            if live[block] == 0:
                unique.append(block)
            elif live[block] == 1:
                self._add_unique(xor[block], -1)
            live[block] += 1
            xor[block] ^= slot
        self.num_live_blocks += len(unique)
        lease.num_unique = len(unique)
        return unique

    def _add_unique(self, slot: int, change: int) -> None:
        lease = self._leases[slot]
        if lease is not None:
            lease.num_unique += change

    @staticmethod
    def _unread(lease: Lease) -> int:
        return lease.num_blocks if lease.num_reads == 0 and not lease.is_handoff else 0


def _is_lease(lease: Lease, key: str) -> bool:
    return lease.lease_id == key


def _is_request(lease: Lease, key: str) -> bool:
    return lease.request_id == key


def _is_turn(lease: Lease, key: str) -> bool:
    return lease.turn_id == key
