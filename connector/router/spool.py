"""Turn events until the control plane has stored them: in memory, and on disk so that a restart loses none.

File ``events.spool``: records of a big-endian u32 length and msgpack. The first is the header, each other one an event.
The boot id lives in the file: a restarted router goes on with boot and numbering, so the control plane drops what it
already has. Events are on disk before they are sent; written, not synced: a crash of the machine may lose the last.
"""

import asyncio
import logging
import os
import secrets
import struct
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from connector.protocol import EventBatch, NumberedEvent, TurnRecorded

MAX_PENDING = 10_000
MAX_BATCH = 500
COMPACT_BYTES = 16 * 1024 * 1024
MAX_RECORD_BYTES = 64 * 1024

log = logging.getLogger(__name__)

_LENGTH = struct.Struct(">I")


class _Header(msgspec.Struct, frozen=True):
    boot: str
    next_sequence: int


class _Record(msgspec.Struct, frozen=True):
    """``recorded_unix`` dates the event across a restart on the same machine; a running process counts monotonic."""

    sequence: int
    recorded_unix: float
    event: TurnRecorded


@dataclass(frozen=True, slots=True)
class _Pending:
    sequence: int
    recorded: float
    event: TurnRecorded


_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(_Header).decode
_decode_record = msgspec.msgpack.Decoder(_Record).decode


class EventSpool:
    """Bounded: past 10,000 events the oldest go, and are counted. Used on the event loop only."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / "events.spool"
        self._pending: deque[_Pending] = deque()
        self._unwritten: list[bytes] = []
        self._size = 0
        self._is_stale = False
        self._writing = asyncio.Lock()
        self.boot = secrets.token_hex(16)
        self.num_dropped = 0
        self.added = asyncio.Event()
        self._next = 1
        self._load()
        self._store(self._image())

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    def append(self, event: TurnRecorded) -> None:
        sequence = self._next
        self._next += 1
        self._keep(_Pending(sequence, time.monotonic(), event))
        self._unwritten.append(_frame(_encode(_Record(sequence, time.time(), event))))
        self.added.set()

    def batch(self) -> EventBatch | None:
        """The oldest pending events with their ages as of now; absent when there are none."""
        if not self._pending:
            return None
        now = time.monotonic()
        oldest = [self._pending[i] for i in range(min(MAX_BATCH, len(self._pending)))]
        return EventBatch(boot=self.boot, incarnation="", events=tuple(_number(item, now) for item in oldest))

    def commit(self, sequence: int) -> None:
        """Everything up to ``sequence`` is stored; numbering never falls behind what the control plane has seen."""
        while self._pending and self._pending[0].sequence <= sequence:
            self._pending.popleft()
        self._next = max(self._next, sequence + 1)
        if not self._pending:
            self.added.clear()

    async def write(self) -> None:
        """Brings everything appended so far to disk, without blocking the loop.

        A disk that fails costs only the safety of a restart: events stay in memory, and the file is written anew later.
        """
        async with self._writing:
            frames, self._unwritten = self._unwritten, []
            try:
                if self._is_stale or self._size > COMPACT_BYTES:
                    await asyncio.to_thread(self._store, self._image())
                    self._is_stale = False
                elif frames:
                    await asyncio.to_thread(self._append_file, b"".join(frames))
            except OSError as error:
                self._is_stale = True
                log.warning("event=spool_not_written path=%s error=%s", self._path, error)

    def close(self) -> None:
        """Leaves exactly the pending events on disk; blocks shortly."""
        try:
            self._store(self._image())
        except OSError as error:
            log.error("event=spool_not_written path=%s error=%s lost=%s", self._path, error, len(self._unwritten))

    def _keep(self, item: _Pending) -> None:
        self._pending.append(item)
        if len(self._pending) > MAX_PENDING:
            self._pending.popleft()
            self.num_dropped += 1

    def _append_file(self, data: bytes) -> None:
        if not data:
            return
        with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            file.write(data)
        self._size += len(data)

    def _image(self) -> bytes:
        """Header and pending events, as the whole file should be."""
        wall = time.time() - time.monotonic()
        frames = [_frame(_encode(_Header(self.boot, self._next)))]
        frames += [_frame(_encode(_Record(i.sequence, wall + i.recorded, i.event))) for i in self._pending]
        return b"".join(frames)

    def _store(self, image: bytes) -> None:
        fresh = self._path.with_suffix(".new")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(image)
        fresh.replace(self._path)
        self._size = len(image)

    def _load(self) -> None:
        """Takes over a former process's events; what a crash cut short is left out."""
        if not self._path.exists():
            return
        frames = _frames(self._path.read_bytes())
        try:
            header = _decode_header(next(frames, b""))
            self.boot, self._next = header.boot, header.next_sequence
            wall = time.time() - time.monotonic()
            for frame in frames:
                record = _decode_record(frame)
                self._keep(_Pending(record.sequence, record.recorded_unix - wall, record.event))
                self._next = max(self._next, record.sequence + 1)
        except msgspec.MsgspecError as error:
            log.warning("event=spool_unreadable path=%s error=%s kept=%s", self._path, error, len(self._pending))
        if self._pending:
            self.added.set()


def _number(item: _Pending, now: float) -> NumberedEvent:
    age_ms = max(0.0, now - item.recorded) * 1000
    event = msgspec.structs.replace(item.event, started_age_ms=item.event.duration_ms + age_ms)
    return NumberedEvent(sequence=item.sequence, age_ms=age_ms, event=event)


def _frame(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _frames(data: bytes) -> Iterator[bytes]:
    """Whole records only."""
    start = 0
    while start + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if length > MAX_RECORD_BYTES or start + length > len(data):
            return
        yield data[start : start + length]
        start += length
