"""Very many short byte strings without the allocator's own cost: no header each, no holes between them.

Strings of about one length lie side by side in slabs; a slab goes when its last string does.
"""

from array import array

STEP_BYTES = 16
"""Lengths are rounded up to this: 8 bytes are lost on average."""

MAX_BYTES = 2032
"""Longer strings are kept as Python keeps them."""

SLAB_BYTES = 256 * 1024
"""Large enough that the C library maps and unmaps each slab for itself."""

_CLASS_BITS = 7
_CLASS_MASK = (1 << _CLASS_BITS) - 1
_LENGTH_BYTES = 2
_LARGE = 0
"""The class of strings that are no pool's."""


class _Class:
    """Slabs of equal places. Free places are numbers of the class; a slab that was given up keeps its number.

    One empty slab is kept, so that a string that comes and goes doesn't make and unmake one each time.
    """

    __slots__ = ("counts", "empty", "free", "gone", "per_slab", "size", "slabs")

    def __init__(self, size: int) -> None:
        self.size = size
        self.per_slab = SLAB_BYTES // size
        self.slabs: list[bytearray | None] = []
        self.counts = array("I")
        self.free = array("I")
        self.gone: list[int] = []
        self.empty: int | None = None

    def take(self) -> int:
        if self.free:
            place = self.free.pop()
            number = place // self.per_slab
            self.counts[number] += 1
            if number == self.empty:
                self.empty = None
            return place
        number = self.gone.pop() if self.gone else len(self.slabs)
        if number == len(self.slabs):
            self.slabs.append(None)
            self.counts.append(0)
        self.slabs[number] = bytearray(SLAB_BYTES)
        first = number * self.per_slab
        self.free.extend(range(first + self.per_slab - 1, first, -1))
        self.counts[number] = 1
        return first

    def give_back(self, place: int) -> None:
        number = place // self.per_slab
        self.counts[number] -= 1
        self.free.append(place)
        if self.counts[number]:
            return
        if self.empty is None:
            self.empty = number
            return
        self.slabs[number] = None
        self.gone.append(number)
        first = number * self.per_slab
        self.free = array("I", (p for p in self.free if not first <= p < first + self.per_slab))


class Pool:
    """Strings by handle, a number below 2**32; 0 is the empty string."""

    def __init__(self) -> None:
        self._classes: list[_Class | None] = [None] * (1 << _CLASS_BITS)
        self._large: dict[int, bytes] = {}
        self._next_large = 1

    @property
    def num_slabs(self) -> int:
        classes = (one for one in self._classes if one is not None)
        return sum(len(one.slabs) - len(one.gone) for one in classes)

    @property
    def num_strings(self) -> int:
        return len(self._large) + sum(sum(one.counts) for one in self._classes if one is not None)

    def put(self, data: bytes) -> int:
        if not data:
            return 0
        if len(data) > MAX_BYTES - _LENGTH_BYTES:
            return self._put_large(data)
        number = (len(data) + _LENGTH_BYTES + STEP_BYTES - 1) // STEP_BYTES
        owner = self._classes[number]
        if owner is None:
            owner = self._classes[number] = _Class(number * STEP_BYTES)
        place = owner.take()
        slab, start = self._where(owner, place)
        slab[start : start + _LENGTH_BYTES + len(data)] = len(data).to_bytes(_LENGTH_BYTES, "little") + data
        return place << _CLASS_BITS | number

    def get(self, handle: int) -> bytes:
        number, place = handle & _CLASS_MASK, handle >> _CLASS_BITS
        owner = self._classes[number]
        if number == _LARGE or owner is None:
            return self._large[place] if place else b""
        slab, start = self._where(owner, place)
        start += _LENGTH_BYTES
        return bytes(slab[start : start + int.from_bytes(slab[start - _LENGTH_BYTES : start], "little")])

    def holds(self, handle: int, part: bytes, offset: int) -> bool:
        """Whether the string has ``part`` at ``offset``; without copying it."""
        number, place = handle & _CLASS_MASK, handle >> _CLASS_BITS
        owner = self._classes[number]
        if number == _LARGE or owner is None:
            return self.get(handle).startswith(part, offset)
        slab, start = self._where(owner, place)
        return slab.startswith(part, start + _LENGTH_BYTES + offset)

    def remove(self, handle: int) -> None:
        number, place = handle & _CLASS_MASK, handle >> _CLASS_BITS
        owner = self._classes[number]
        if number == _LARGE or owner is None:
            self._large.pop(place, None)
            return
        owner.give_back(place)

    def _put_large(self, data: bytes) -> int:
        place = self._next_large
        while place in self._large:
            place += 1
        self._large[place] = data
        self._next_large = place + 1 if place < 1 << 24 else 1
        return place << _CLASS_BITS | _LARGE

    def _where(self, owner: _Class, place: int) -> tuple[bytearray, int]:
        number, offset = divmod(place, owner.per_slab)
        slab = owner.slabs[number]
        if slab is None:
            raise KeyError(place)
        return slab, offset * owner.size
