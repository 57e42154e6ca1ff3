"""The fence: one generation word per lease in the source's registered memory, on every transfer rank.

A NIXL READ is one-sided, so a reader can't know whether the source still held the blocks while it read. The source sets
the lease's word before it offers, and zeroes it *before* it reports the blocks as free. The reader READs the word after
the data: the expected generation proves that the lease outlived the read; anything else means recompute.
"""

import secrets
from collections import deque

import numpy as np

from connector.engine.slot_index import NUM_SLOTS

NUM_LEASE_WORDS = NUM_SLOTS
NUM_LANDING_WORDS = 1024
WORD_BYTES = 8


class FenceMemory:
    """Worker side: the words that peers read, and a second region where words read from peers land."""

    def __init__(self) -> None:
        self._words = np.zeros(NUM_LEASE_WORDS + NUM_LANDING_WORDS, dtype=np.uint64)
        self._free_landing = deque(range(NUM_LEASE_WORDS, NUM_LEASE_WORDS + NUM_LANDING_WORDS))
        self._slot_of_request: dict[str, int] = {}

    @property
    def address(self) -> int:
        return int(self._words.ctypes.data)

    @property
    def num_bytes(self) -> int:
        return int(self._words.nbytes)

    def raise_word(self, request_id: str, slot: int, generation: int) -> None:
        self._words[slot] = generation
        self._slot_of_request[request_id] = slot

    def drop_word(self, request_id: str) -> None:
        """Must run before the request's blocks are reported as free."""
        slot = self._slot_of_request.pop(request_id, None)
        if slot is not None:
            self._words[slot] = 0

    def drop_all_words(self) -> None:
        """Every lease of this engine becomes unreadable: the safe answer when it isn't known which word to drop."""
        self._words[:NUM_LEASE_WORDS] = 0
        self._slot_of_request.clear()

    @property
    def num_words(self) -> int:
        return len(self._slot_of_request)

    @property
    def num_free_landings(self) -> int:
        return len(self._free_landing)

    def take_landing(self) -> int | None:
        """Index of a zeroed word for one fence READ, or ``None`` when too many are in flight."""
        if not self._free_landing:
            return None
        index = self._free_landing.popleft()
        self._words[index] = 0
        return index

    def return_landing(self, index: int) -> None:
        self._free_landing.append(index)

    def value(self, index: int) -> int:
        return int(self._words[index])

    def word_address(self, index: int) -> int:
        return self.address + WORD_BYTES * index


class FenceSlots:
    """Scheduler side: which slot and generation each request has. No free slot, no offer."""

    def __init__(self) -> None:
        self._free = deque(range(NUM_LEASE_WORDS))
        self._generation = secrets.randbits(62) | 1
        self._held: dict[str, tuple[int, int]] = {}

    def assign(self, request_id: str) -> tuple[int, int] | None:
        """(slot, generation) of this request, the same on every call; generations never repeat in a process."""
        if request_id in self._held:
            return self._held[request_id]
        if not self._free:
            return None
        self._generation += 1
        self._held[request_id] = (self._free.popleft(), self._generation)
        return self._held[request_id]

    def get(self, request_id: str) -> tuple[int, int] | None:
        return self._held.get(request_id)

    @property
    def num_taken(self) -> int:
        return NUM_LEASE_WORDS - len(self._free)

    def hand_over(self, request_id: str) -> None:
        """The slot stays taken, but is remembered elsewhere, until it is given back."""
        self._held.pop(request_id, None)

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def release(self, request_id: str) -> bool:
        held = self._held.pop(request_id, None)
        if held is not None:
            self._free.append(held[0])
        return held is not None
