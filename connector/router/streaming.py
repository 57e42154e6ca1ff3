"""Looks at a reply from the side while it is relayed."""

import time
from collections import deque

TAIL_BYTES = 4 * 1024
"""How much of a reply's end is kept to find its usage in."""

MAX_REPLY_BYTES = 256 * 1024
"""Longest reply that is kept whole for its digest, and only where a digest is needed."""

MAX_HEAD_BYTES = 4 * 1024

EVENT_STREAM = "text/event-stream"


class Observer:
    """Sees each chunk once, before it goes out; bounded, never raises, changes nothing.

    What it finds depends on the bytes only, not on how they were cut. ``opening`` begins the first event that says
    something, where an API sends others before the engine has computed anything; empty: the first event counts.
    """

    def __init__(self, is_events: bool, keeps_reply: bool, opening: bytes = b"") -> None:
        self._opening = opening
        self.is_events = is_events
        self.num_bytes = 0
        self.first_event_at = 0.0
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._head = b""
        self._whole: list[bytes] | None = [] if keeps_reply else None

    def see(self, chunk: bytes) -> None:
        self.num_bytes += len(chunk)
        self._tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size - len(self._tail[0]) >= TAIL_BYTES:
            self._tail_size -= len(self._tail.popleft())
        if not self.first_event_at:
            self._look_for_event(chunk)
        if self._whole is not None:
            self._whole.append(chunk)
            if self.num_bytes > MAX_REPLY_BYTES:
                self._whole = None

    def whole(self) -> bytes:
        """The reply, if it was to be kept and was short enough; else empty."""
        return b"".join(self._whole) if self._whole is not None else b""

    def tail(self) -> bytes:
        return b"".join(self._tail)[-TAIL_BYTES:]

    def _look_for_event(self, chunk: bytes) -> None:
        """The first event is the first data line; comments such as ``: ping`` come before any token."""
        if not self.is_events:
            self.first_event_at = time.monotonic()
            return
        if self._opening:
            seen = self._head + chunk
            self._head = seen[-len(self._opening) :]
            if self._opening in seen:
                self.first_event_at = time.monotonic()
            return
        if not self._head and chunk.startswith(b"data:"):
            self.first_event_at = time.monotonic()
            return
        self._head += chunk[: MAX_HEAD_BYTES - len(self._head)]
        lines = self._head.replace(b"\r", b"\n").split(b"\n")
        is_full = len(self._head) >= MAX_HEAD_BYTES
        if is_full or any(line and not line.startswith(b":") for line in lines):
            self.first_event_at = time.monotonic()
            self._head = b""
