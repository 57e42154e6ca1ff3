"""Slots by key, for very many keys of which few are in use: the latest in a dictionary, others in a table of hashes.

A dictionary is several times as fast, and takes ten times the memory.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from connector.router.slots import SlotTable

MAX_RECENT = 16_384

K = TypeVar("K", bound=Hashable)


class Directory(Generic[K]):
    """``find`` may tell slots of other keys that look alike: callers look closer. Several may stand under one key."""

    __slots__ = ("_max_recent", "_recent", "_table")

    def __init__(self, max_recent: int = MAX_RECENT) -> None:
        self._max_recent = max_recent
        self._recent: OrderedDict[K, int] = OrderedDict()
        self._table = SlotTable()

    @property
    def num_entries(self) -> int:
        return len(self._recent) + self._table.num_entries

    def find(self, key: K) -> Iterable[int]:
        """Candidates; nearly always one or none. The slot that was added last to a key comes first."""
        slot = self._recent.get(key)
        if slot is None:
            return self._table.find(hash(key))
        return self._with_older(slot, key) if self._table.num_entries else (slot,)

    def add(self, key: K, slot: int) -> None:
        other = self._recent.pop(key, None)
        if other is not None:
            self._table.add(hash(key), other)
        self._recent[key] = slot
        if len(self._recent) > self._max_recent:
            old, slot = self._recent.popitem(last=False)
            self._table.add(hash(old), slot)

    def move(self, key: K, slot: int, other: int) -> None:
        """``other`` stands where ``slot`` stood."""
        if self._recent.get(key) == slot:
            self._recent[key] = other
        else:
            self._table.remove(hash(key), slot)
            self.add(key, other)

    def remove(self, key: K, slot: int) -> None:
        """Raises ``KeyError`` when the slot doesn't stand under the key."""
        if self._recent.get(key) == slot:
            del self._recent[key]
        else:
            self._table.remove(hash(key), slot)

    def _with_older(self, slot: int, key: K) -> Iterable[int]:
        yield slot
        yield from self._table.find(hash(key))
