"""Limits on what events may say, checked before a row is made; pure.

An event over a limit is refused alone: one that Postgres refused would fail its whole batch, which its sender would
resend for ever.
"""

import math
import re
import uuid
from datetime import datetime, timedelta

MAX_ID_CHARS = 200
MAX_NAME_CHARS = 128
MAX_REASON_CHARS = 64
MAX_ROLE_CHARS = 16
MAX_COUNT = 2**31 - 1
MAX_BYTES = 2**50
"""A pebibyte: far beyond any transfer or lease, and sums of thousands still fit a bigint."""
MAX_SECONDS = 10 * 365 * 24 * 3600.0

_TRACE_ID = re.compile(r"(?:00-)?(?P<trace>[0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?")
_SPAN_ID = re.compile(r"[0-9a-f]{16}")


class RefusedEventError(ValueError):
    """The event can't be stored; ``str`` says why and quotes nothing of it."""


def identifier(value: str, *, max_chars: int = MAX_ID_CHARS) -> str:
    """A non-empty key that a text column takes."""
    if not value:
        raise RefusedEventError("an id is empty")
    return text(value, max_chars=max_chars)


def text(value: str, *, max_chars: int = MAX_NAME_CHARS) -> str:
    if len(value) > max_chars:
        raise RefusedEventError(f"a text is longer than {max_chars} characters")
    if "\0" in value:
        raise RefusedEventError("a text holds a NUL")
    return value


def reason(value: str) -> str:
    """Free text: cut rather than refused."""
    return value.replace("\0", "")[:MAX_REASON_CHARS]


def count(value: int, *, high: int = MAX_COUNT) -> int:
    if not 0 <= value <= high:
        raise RefusedEventError(f"a count is outside 0 to {high}")
    return value


def milliseconds(value: float) -> float:
    if not math.isfinite(value) or not 0 <= value <= MAX_SECONDS * 1000:
        raise RefusedEventError("a duration is not a plausible number of milliseconds")
    return value


def turn_uuid(value: str) -> uuid.UUID:
    try:
        return uuid.UUID(value)
    except ValueError:
        raise RefusedEventError("a turn id is not a UUID") from None


def moment_after(at: datetime, seconds: float) -> datetime:
    """``at`` plus a remaining time; one beyond ten years counts as ten years."""
    return at + timedelta(seconds=min(seconds, MAX_SECONDS))


def moment_before(at: datetime, age_ms: float) -> datetime:
    return at - timedelta(milliseconds=milliseconds(age_ms))


def trace_id(value: str) -> str:
    """The trace id of a bare id or a ``traceparent`` (W3C Trace Context); empty when there is none."""
    match = _TRACE_ID.fullmatch(value)
    found = match["trace"] if match else ""
    return found if found.strip("0") else ""


def span_id(value: str) -> str:
    return value if _SPAN_ID.fullmatch(value) and value.strip("0") else ""
