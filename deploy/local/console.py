"""What the operator reads: one line per step with the time since the start, and one line for what can't work."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class StackError(Exception):
    """Nothing can go on; the text is one sentence that says why and what to do."""


class Console:
    """Lines from several threads never mix."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        elapsed = time.monotonic() - self._started
        with self._lock:
            print(f"[{elapsed:6.1f} s] {text}", file=self._stream, flush=True)

    def plain(self, text: str = "") -> None:
        with self._lock:
            print(text, file=self._stream, flush=True)

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[None]:
        """Says that a long step began, and how long it took unless it raised."""
        self.say(f"{name}: {doing} …")
        began = time.monotonic()
        yield
        self.say(f"{name}: done in {time.monotonic() - began:.1f} s")
