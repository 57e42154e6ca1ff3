"""UUIDv7 ids (RFC 9562) for Python < 3.14: unique, and increasing in the order this process made them."""

import os
import threading
import time
import uuid

_SUB_MS_BITS = 12
_lock = threading.Lock()
_last_tick = 0


def uuid7() -> uuid.UUID:
    """48 bits of Unix ms, 12 bits of the ms's fraction (method 3 of section 6.2), 62 random bits.

    The fraction is bumped when the clock stands still or steps back, so ids of one process never go backwards: the
    cursor pages and the indexes rely on it.
    """
    global _last_tick
    tick = (time.time_ns() << _SUB_MS_BITS) // 1_000_000
    with _lock:
        tick = max(tick, _last_tick + 1)
        _last_tick = tick
    milliseconds, fraction = tick >> _SUB_MS_BITS, tick & 0xFFF
    random = int.from_bytes(os.urandom(8)) >> 2
    return uuid.UUID(int=(milliseconds << 80) | (0x7 << 76) | (fraction << 64) | (0b10 << 62) | random)
