"""Unsent events on disk, so that they outlive the agent's process while the control plane is away.

Append-only segments of length-prefixed msgpack (the engine link's frames), named by a growing number. Each event and
each commit of the control plane is one ``write`` to the newest segment; a segment is unlinked when none of its events
is wanted any more. Nothing is ever rewritten.

Durability: a record is in the kernel when ``append`` returns, so a crash or ``kill -9`` of the agent loses nothing.
There is no fsync: a power failure loses what the kernel hadn't written back, typically the last 30 s, and a torn tail
is cut off when the segment is read.
"""

import logging
import os
from collections import deque
from pathlib import Path

import msgspec

from connector.agent.backoff import Occasionally
from connector.framing import HEADER_BYTES, encode_frame
from connector.protocol import Event, Message

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 1024 * 1024

NOT_ON_DISK = -1

SEGMENT_NAME = "[0-9]" * 16 + ".seg"


class SpooledEvent(Message, frozen=True):
    """``occurred_unix_ms`` is this machine's wall clock: the only one that still means something after a restart."""

    boot: str
    incarnation: str
    sequence: int
    occurred_unix_ms: float
    event: Event


class SpooledCommit(Message, frozen=True):
    """Everything of this boot up to ``sequence`` is stored at the control plane."""

    boot: str
    sequence: int


SpoolRecord = SpooledEvent | SpooledCommit


class Loaded(msgspec.Struct, frozen=True):
    segment: int
    event: SpooledEvent


class _Segment(msgspec.Struct):
    number: int
    path: Path
    num_wanted: int = 0


class Spool:
    """Events leave in the order in which they came, so segments do as well. The owner calls ``forget`` for each event.

    A disk that refuses a write is logged once a minute and counted; the owner still has the event in memory.
    """

    def __init__(self, directory: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.num_failed_writes = 0
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segments: deque[_Segment] = deque()
        self._descriptor: int | None = None
        self._size = 0
        self._complaints = Occasionally()

    def load(self) -> list[Loaded]:
        """Every event that isn't known to be committed, oldest first. To be called once, before anything else."""
        loaded: list[Loaded] = []
        committed: dict[str, int] = {}
        for path in sorted(self._directory.glob(SEGMENT_NAME)):
            segment = _Segment(int(path.stem), path)
            self._segments.append(segment)
            for record in _read_segment(path):
                if isinstance(record, SpooledCommit):
                    committed[record.boot] = max(record.sequence, committed.get(record.boot, 0))
                else:
                    loaded.append(Loaded(segment.number, record))
        wanted = [item for item in loaded if item.event.sequence > committed.get(item.event.boot, 0)]
        by_number = {segment.number: segment for segment in self._segments}
        for item in wanted:
            by_number[item.segment].num_wanted += 1
        self._collect()
        return wanted

    def append(self, frame: bytes) -> int:
        """Writes one encoded ``SpooledEvent``; its segment's number, which ``forget`` wants, or ``NOT_ON_DISK``."""
        segment = self._writable()
        if segment is None or not self._write(frame):
            return NOT_ON_DISK
        segment.num_wanted += 1
        return segment.number

    def note_commit(self, boot: str, sequence: int) -> None:
        """Keeps a restarted agent from sending what is stored already."""
        if self._writable() is not None:
            self._write(encode_frame(SpooledCommit(boot=boot, sequence=sequence)))

    def forget(self, segment_number: int) -> None:
        """One event of that segment is committed or dropped."""
        for segment in self._segments:
            if segment.number == segment_number:
                segment.num_wanted -= 1
                break
        self._collect()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def num_bytes(self) -> int:
        """What the segments take on disk."""
        return sum(segment.path.stat().st_size for segment in self._segments)

    def _writable(self) -> _Segment | None:
        if self._descriptor is not None and self._size < self._segment_bytes:
            return self._segments[-1]
        self.close()
        number = self._segments[-1].number + 1 if self._segments else 1
        path = self._directory / f"{number:016d}.seg"
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._complain(error)
            return None
        self._size = 0
        self._segments.append(_Segment(number, path))
        self._collect()
        return self._segments[-1]

    def _write(self, frame: bytes) -> bool:
        """All of it or nothing, so that the segment stays readable."""
        if self._descriptor is None:
            return False
        try:
            written = os.write(self._descriptor, frame)
            if written == len(frame):
                self._size += written
                return True
            os.ftruncate(self._descriptor, self._size)
            raise OSError("short write, the disk is full")
        except OSError as error:
            self._complain(error)
            return False

    def _collect(self) -> None:
        """Unlinks from the oldest on, so that a commit mark outlives the events that it speaks of."""
        while self._segments and self._segments[0].num_wanted == 0:
            if len(self._segments) == 1 and self._descriptor is not None:
                return
            self._segments.popleft().path.unlink(missing_ok=True)

    def _complain(self, error: OSError) -> None:
        self.num_failed_writes += 1
        if self._complaints.allows("write"):
            logger.error("spool_write_failed directory=%s error=%s", self._directory, error)


def _read_segment(path: Path) -> list[SpoolRecord]:
    """Every record that can be read; frames of another version are skipped, a torn tail is left out."""
    decoder: msgspec.msgpack.Decoder[SpoolRecord] = msgspec.msgpack.Decoder(SpoolRecord)
    records: list[SpoolRecord] = []
    data = path.read_bytes()
    position = num_skipped = 0
    while position + HEADER_BYTES <= len(data):
        start = position + HEADER_BYTES
        end = start + int.from_bytes(data[position:start], "big")
        if end == start or end > len(data):
            break
        try:
            records.append(decoder.decode(data[start:end]))
        except msgspec.MsgspecError:
            num_skipped += 1
        position = end
    if num_skipped or position < len(data):
        message = "spool_segment_damaged path=%s num_read=%d num_skipped=%d num_bytes_cut=%d"
        logger.warning(message, path, len(records), num_skipped, len(data) - position)
    return records
