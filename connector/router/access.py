"""The access log: one JSON object a line, written in batches off the request path."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import orjson

FLUSH_SECONDS = 0.25
MAX_BUFFERED_LINES = 1_000

WHOLE_BYTES = 4096
"""Several processes write to one pipe: so much arrives undivided (``PIPE_BUF``)."""


class AccessLog:
    """Never holds a prompt or a secret: callers give ids, names, numbers. ``router`` names the process in each line,
    where several share the log."""

    def __init__(self, sink: BinaryIO, router: str = "") -> None:
        self._sink = sink
        self._router = router
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def write(self, entry: Mapping[str, object]) -> None:
        self._lines.append(orjson.dumps({**entry, "router": self._router} if self._router else entry))
        if len(self._lines) >= MAX_BUFFERED_LINES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lines:
            lines, self._lines = self._lines, []
            for piece in _pieces(lines):
                self._sink.write(piece)
                self._sink.flush()


def _pieces(lines: list[bytes]) -> Iterator[bytes]:
    """Whole lines, as many at a time as arrive undivided; a longer one stands alone."""
    start, size = 0, 0
    for at, line in enumerate(lines):
        if size and size + len(line) + 1 > WHOLE_BYTES:
            yield b"\n".join(lines[start:at]) + b"\n"
            start, size = at, 0
        size += len(line) + 1
    yield b"\n".join(lines[start:]) + b"\n"
