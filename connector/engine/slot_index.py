"""Slots by key in two fixed arrays: a few bytes an entry, where a dictionary would take a hundred."""

from array import array
from collections.abc import Iterator

NUM_SLOTS = 4096
"""Requests of an engine that can have a fence word, and so a lease, at a time."""


class SlotIndex:
    """A chained hash table that stores no keys: it yields candidates, and the caller compares.

    One writer; another thread may read, and at worst misses an entry that is changing. Slots are below 65,535.
    """

    def __init__(self, num_slots: int) -> None:
        self._none = 0xFFFF
        self._first = array("H", [self._none]) * num_slots
        self._next = array("H", [self._none]) * num_slots

    def add(self, key: object, slot: int) -> None:
        bucket = hash(key) % len(self._first)
        self._next[slot] = self._first[bucket]
        self._first[bucket] = slot

    def discard(self, key: object, slot: int) -> None:
        """``key`` must be the one that the slot was added with."""
        bucket = hash(key) % len(self._first)
        if self._first[bucket] == slot:
            self._first[bucket] = self._next[slot]
            return
        for before in self._walk(bucket):
            if self._next[before] == slot:
                self._next[before] = self._next[slot]
                return

    def candidates(self, key: object) -> Iterator[int]:
        """Slots that may have this key, the last added first."""
        return self._walk(hash(key) % len(self._first))

    def _walk(self, bucket: int) -> Iterator[int]:
        slot = self._first[bucket]
        while slot != self._none:
            yield slot
            slot = self._next[slot]
