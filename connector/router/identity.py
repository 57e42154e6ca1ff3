"""Turn ids: UUIDv7, so that ids sort by the time they were made."""

import secrets
import time

_RANDOM_BITS = 74
_VERSION = 7
_VARIANT = 0b10


def new_turn_id() -> str:
    """A fresh UUIDv7 in its canonical text form (RFC 9562, section 5.7)."""
    millis = time.time_ns() // 1_000_000 & (1 << 48) - 1
    noise = secrets.randbits(_RANDOM_BITS)
    high, low = noise >> 62, noise & (1 << 62) - 1
    value = f"{millis << 80 | _VERSION << 76 | high << 64 | _VARIANT << 62 | low:032x}"
    return f"{value[:8]}-{value[8:12]}-{value[12:16]}-{value[16:20]}-{value[20:]}"


def new_session_id() -> str:
    """An id for a conversation whose client names none; the same shape as a derived one."""
    return secrets.token_hex(16)
