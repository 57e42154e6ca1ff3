"""Ids that the agent makes itself: UUIDv7, so that they sort by time."""

import os
import time
import uuid


def new_id() -> str:
    """A UUIDv7 of RFC 9562: 48 bits of Unix milliseconds, then random bits."""
    value = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))
