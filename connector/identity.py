"""UUIDv7 ids (RFC 9562) for Python < 3.14: unique, and increasing in the order this process made them.

The control plane uses them as well: they are what rows and messages are named by.
"""

import os
import threading
import time
import uuid

_FRACTION_BITS = 12


class _Clock:
    """Unix time in 1/4096 ms, bumped when it stands still or steps back, so that no two ticks are equal."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def tick(self) -> int:
        now = (time.time_ns() << _FRACTION_BITS) // 1_000_000
        with self._lock:
            self._last = max(now, self._last + 1)
            return self._last


_clock = _Clock()


def uuid7() -> uuid.UUID:
    """48 bits of Unix ms, 12 bits of the ms's fraction (method 3 of section 6.2), 62 random bits.

    Ids of one process never go backwards: cursor pages and indexes rely on it.
    """
    tick = _clock.tick()
    milliseconds, fraction = tick >> _FRACTION_BITS, tick & (1 << _FRACTION_BITS) - 1
    random = int.from_bytes(os.urandom(8)) >> 2
    return uuid.UUID(int=(milliseconds << 80) | (0x7 << 76) | (fraction << 64) | (0b10 << 62) | random)
