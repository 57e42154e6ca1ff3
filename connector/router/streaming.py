"""Looks at a reply from the side while it is relayed."""

import time
from collections import deque

import orjson

TAIL_BYTES = 4 * 1024
"""How much of a reply's end is kept to find its usage in."""

MAX_REPLY_BYTES = 256 * 1024
"""Longest reply that is kept whole for its digest, and only where a digest is needed."""

MAX_HEAD_BYTES = 4 * 1024

MAX_USAGE_LINES = 4
"""With usage in every chunk the last one counts; a few lines after it may say null."""

EVENT_STREAM = "text/event-stream"


class Observer:
    """Sees each chunk once, before it goes out; bounded, never raises, changes nothing.

    What it finds depends on the bytes only, not on how they were cut.
    """

    def __init__(self, is_events: bool, keeps_reply: bool) -> None:
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
        self._head += chunk[: MAX_HEAD_BYTES - len(self._head)]
        lines = self._head.replace(b"\r", b"\n").split(b"\n")
        is_full = len(self._head) >= MAX_HEAD_BYTES
        if is_full or any(line and not line.startswith(b":") for line in lines):
            self.first_event_at = time.monotonic()
            self._head = b""


class Ending:
    """What a reply's last bytes tell: usage where there is one, and whether the stream ended as it should."""

    __slots__ = ("has_error", "is_complete", "num_output_tokens", "num_prompt_tokens")

    def __init__(self, observer: Observer) -> None:
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.has_error = False
        self.is_complete = True
        tail = observer.tail()
        if observer.is_events:
            self._read_events(tail)
        else:
            self._read_body(tail)

    def _read_events(self, tail: bytes) -> None:
        """Only lines that may hold usage or an error are parsed; a stream's last kilobytes hold some fifty events."""
        self.is_complete = tail.rstrip().endswith(b"[DONE]")
        before = len(tail)
        for _ in range(MAX_USAGE_LINES):
            place = tail.rfind(b'"usage"', 0, before)
            if place < 0:
                break
            line, before = _line_around(tail, place)
            if self._take(_load(line).get("usage")):
                break
        place = tail.rfind(b'"error"')
        if place >= 0:
            self.has_error = isinstance(_load(_line_around(tail, place)[0]).get("error"), dict)

    def _read_body(self, tail: bytes) -> None:
        """Inside a JSON string the quotes of ``"usage":`` would be escaped, so the last one is the member itself."""
        start = tail.rfind(b'"usage":')
        if start < 0:
            return
        begin = start + len(b'"usage":')
        end = tail.find(b"}", begin)
        while end > 0:
            if self._take(_load(tail[begin : end + 1])):
                return
            end = tail.find(b"}", end + 1) if end - begin < 2048 else -1

    def _take(self, usage: object) -> bool:
        if not isinstance(usage, dict):
            return False
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if not isinstance(prompt, int):
            return False
        self.num_prompt_tokens = prompt
        self.num_output_tokens = output if isinstance(output, int) else 0
        return True


def _line_around(data: bytes, place: int) -> tuple[bytes, int]:
    """What follows ``data:`` on the line that holds ``place``, and where the line begins."""
    begin = max(data.rfind(b"\n", 0, place), data.rfind(b"\r", 0, place)) + 1
    end = min((i for i in (data.find(b"\n", place), data.find(b"\r", place)) if i >= 0), default=len(data))
    line = data[begin:end]
    return (line[5:] if line.startswith(b"data:") else b""), begin


def _load(data: bytes) -> dict[str, object]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
