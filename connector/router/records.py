"""What is remembered of each turn as text: of the latest as it came, of older ones packed into a third of the bytes.

Packing takes longer than placing a turn, and most turns are superseded by the next one of their session soon. So the
latest stay as they are, bounded by number and size, and only what outlives them is packed.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from connector.compact import pack_texts, unpack_texts
from connector.router.offers import Hints, OfferPacker
from connector.router.pool import Pool

MAX_FRESH = 16_384
MAX_FRESH_BYTES = 32 << 20

SESSION_START = 8
"""A packed record begins with the lengths of its ids and parts; the session's id follows."""

FRESH_BYTES = 400
"""What a record as it came costs beside parts and offer, roughly: it only has to bound."""


class Record(NamedTuple):
    """``lease_id`` and ``offer`` are empty without a lease; ``parts``: see ``rewriting``; ``holder``: see ``Rows``."""

    session_id: str
    turn_id: str
    lease_id: str = ""
    parts: bytes = b""
    offer: str = ""
    holder: int = 0

    @property
    def hints(self) -> Hints:
        """Engines put these ids into their offers as text."""
        return self.lease_id.encode(), self.turn_id.encode()


class Records:
    """Records by slot. ``forget_holder`` when the last lease of a holder is gone: offers are packed by holder.

    ``on_packed`` is told the slot of a record that was packed, and by how many bytes that changed what it takes.
    """

    def __init__(
        self,
        on_packed: Callable[[int, int], None],
        max_fresh: int = MAX_FRESH,
        max_fresh_bytes: int = MAX_FRESH_BYTES,
    ) -> None:
        self._on_packed = on_packed
        self._max_fresh, self._max_fresh_bytes = max_fresh, max_fresh_bytes
        self._fresh: OrderedDict[int, Record] = OrderedDict()
        self._fresh_bytes = 0
        self._handles, self._sizes = array("I"), array("I")
        self._pool = Pool()
        self._packers: dict[int, OfferPacker] = {}

    @property
    def num_fresh(self) -> int:
        return len(self._fresh)

    @property
    def num_packed(self) -> int:
        return self._pool.num_strings

    def get(self, slot: int) -> Record:
        return self._fresh.get(slot) or self._unpacked(self._pool.get(self._handles[slot]))

    def is_of_session(self, slot: int, session_id: str) -> bool:
        """Without unpacking."""
        record = self._fresh.get(slot)
        if record is not None:
            return record.session_id == session_id
        return self._pool.holds(self._handles[slot], pack_texts((session_id,)), SESSION_START)

    def put(self, slot: int, record: Record) -> int:
        """In place of the one before, if there is one; by how many bytes it takes more."""
        while len(self._handles) <= slot:
            self._handles.append(0)
            self._sizes.append(0)
        size, before = FRESH_BYTES + len(record.parts) + len(record.offer), self._sizes[slot]
        if slot in self._fresh:
            self._fresh_bytes -= before
        elif before:
            self._drop_packed(slot)
        self._fresh[slot], self._sizes[slot] = record, size
        self._fresh_bytes += size
        while len(self._fresh) > self._max_fresh or self._fresh_bytes > self._max_fresh_bytes:
            self._pack_oldest()
        return size - before

    def remove(self, slot: int) -> None:
        if self._fresh.pop(slot, None) is not None:
            self._fresh_bytes -= self._sizes[slot]
        else:
            self._drop_packed(slot)
        self._sizes[slot] = 0

    def forget_holder(self, holder: int) -> None:
        self._packers.pop(holder, None)

    def _drop_packed(self, slot: int) -> None:
        self._pool.remove(self._handles[slot])
        self._handles[slot] = 0

    def _pack_oldest(self) -> None:
        slot, record = self._fresh.popitem(last=False)
        packed, before = self._packed(record), self._sizes[slot]
        self._fresh_bytes -= before
        self._handles[slot], self._sizes[slot] = self._pool.put(packed), len(packed)
        self._on_packed(slot, len(packed) - before)

    def _packed(self, record: Record) -> bytes:
        ids = pack_texts((record.session_id, record.turn_id, record.lease_id))
        head = len(ids).to_bytes(4, "little") + len(record.parts).to_bytes(4, "little")
        offer = b""
        if record.offer:
            packer = self._packers.get(record.holder)
            if packer is None:
                packer = self._packers[record.holder] = OfferPacker(record.offer)
            offer = record.holder.to_bytes(4, "little") + packer.pack(record.offer, record.hints)
        return b"".join((head, ids, record.parts, offer))

    def _unpacked(self, packed: bytes) -> Record:
        parts_start = SESSION_START + int.from_bytes(packed[:4], "little")
        offer_start = parts_start + int.from_bytes(packed[4:8], "little")
        session_id, turn_id, lease_id = unpack_texts(packed[SESSION_START:parts_start])
        record = Record(session_id, turn_id, lease_id, packed[parts_start:offer_start])
        if offer_start == len(packed):
            return record
        holder = int.from_bytes(packed[offer_start : offer_start + 4], "little")
        offer = self._packers[holder].unpack(packed[offer_start + 4 :], record.hints)
        return record._replace(offer=offer, holder=holder)
