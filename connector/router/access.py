"""The access log: one JSON object a line, written in batches off the request path."""

import asyncio
from collections.abc import Mapping
from typing import BinaryIO

import orjson

FLUSH_SECONDS = 0.25
MAX_BUFFERED_LINES = 1_000


class AccessLog:
    """Never holds a prompt or a secret: callers give ids, names, numbers."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def write(self, entry: Mapping[str, object]) -> None:
        self._lines.append(orjson.dumps(entry))
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
            self._sink.write(b"\n".join(lines) + b"\n")
            self._sink.flush()
