"""Tables of slots: small numbers, found again by a 64-bit hash, at about 11 bytes an entry."""

from array import array

SHARD_BITS = 10
"""A table is 1,024 small ones that grow each for itself, so that no insertion waits for the whole to be laid anew."""

_SHARDS = (1 << SHARD_BITS) - 1
_TAG_MASK = (1 << 32) - 1
_SLOT_BITS = 32
_SMALLEST = 6
_FULL_PERCENT = 80


class SlotTable:
    """Slots by hash. Several slots may stand under one hash, and unlike keys may look alike: callers look closer.

    An entry is 32 bits of the hash above 32 bits of slot + 1; 0 is a free place. Places are probed one after the other.
    """

    __slots__ = ("_counts", "_shards", "num_entries")

    def __init__(self) -> None:
        self._shards: list[array[int] | None] = [None] * (1 << SHARD_BITS)
        self._counts = array("I", bytes(4 << SHARD_BITS))
        self.num_entries = 0

    def add(self, key: int, slot: int) -> None:
        number, tag = key & _SHARDS, key >> SHARD_BITS & _TAG_MASK
        shard = self._shards[number]
        if shard is None:
            shard = self._shards[number] = array("Q", bytes(8 * _SMALLEST))
        elif 100 * self._counts[number] >= _FULL_PERCENT * len(shard):
            shard = self._shards[number] = _grown(shard)
        _place(shard, tag << _SLOT_BITS | slot + 1)
        self._counts[number] += 1
        self.num_entries += 1

    def find(self, key: int) -> list[int]:
        """Candidates, in no order; nearly always one or none."""
        shard = self._shards[key & _SHARDS]
        if shard is None:
            return []
        tag, size = key >> SHARD_BITS & _TAG_MASK, len(shard)
        place, found = tag % size, []
        while entry := shard[place]:
            if entry >> _SLOT_BITS == tag:
                found.append((entry & _TAG_MASK) - 1)
            place = place + 1 if place + 1 < size else 0
        return found

    def remove(self, key: int, slot: int) -> None:
        """Raises ``KeyError`` when the slot doesn't stand under the hash."""
        number, tag = key & _SHARDS, key >> SHARD_BITS & _TAG_MASK
        shard = self._shards[number]
        if shard is None:
            raise KeyError(slot)
        size, wanted = len(shard), tag << _SLOT_BITS | slot + 1
        place = tag % size
        while shard[place] != wanted:
            if not shard[place]:
                raise KeyError(slot)
            place = (place + 1) % size
        _close_gap(shard, place)
        self._counts[number] -= 1
        self.num_entries -= 1
        if not self._counts[number]:
            self._shards[number] = None


def _place(shard: "array[int]", entry: int) -> None:
    size = len(shard)
    place = (entry >> _SLOT_BITS) % size
    while shard[place]:
        place = place + 1 if place + 1 < size else 0
    shard[place] = entry


def _grown(shard: "array[int]") -> "array[int]":
    size = len(shard) + len(shard) // 4 + _SMALLEST
    grown = array("Q", bytes(8 * size))
    for entry in shard:
        if entry:
            _place(grown, entry)
    return grown


def _close_gap(shard: "array[int]", gap: int) -> None:
    """Empties a place and moves up what was only put behind it because it was taken."""
    size = len(shard)
    place = gap
    while True:
        place = (place + 1) % size
        entry = shard[place]
        if not entry:
            break
        home = (entry >> _SLOT_BITS) % size
        if (place - home) % size >= (place - gap) % size:
            shard[gap] = entry
            gap = place
    shard[gap] = 0
