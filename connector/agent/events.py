"""Numbered events on their way to the control plane: none lost or doubled while there is room, then the oldest dropped.

Memory holds every event that isn't committed, bounded by count and by bytes, as encoded frames; the spool holds the
same frames on disk. Events of earlier boots (found in the spool) keep their numbers and go first, each boot on a
connection that says hello with it: the control plane remembers one (boot, sequence) per agent, and so drops every
duplicate of any of them.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from connector.agent.backoff import Occasionally
from connector.agent.spool import Spool, SpooledEvent
from connector.framing import HEADER_BYTES, encode_frame
from connector.protocol import Event, EventBatch, NumberedEvent, TransferRecorded

logger = logging.getLogger(__name__)


class BufferLimits(msgspec.Struct, frozen=True, kw_only=True):
    """``max_batch`` is the contract's; the others bound what is kept."""

    max_events: int = 50_000
    max_bytes: int = 64 * 1024 * 1024
    max_batch: int = 500


class Clocks(NamedTuple):
    """Seconds. ``monotonic`` dates events of this process; ``wall`` those that an earlier one left in the spool."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class _Pending(NamedTuple):
    """``occurred``: monotonic seconds; ``None`` for an event of an earlier process, dated by its frame's wall time."""

    boot: str
    incarnation: str
    sequence: int
    occurred: float | None
    segment: int
    frame: bytes


class EventBuffer:
    """Used from the event loop only. ``changed`` is set whenever ``next_batch`` may have something new to say."""

    def __init__(
        self, boot: str, spool: Spool, limits: BufferLimits | None = None, clocks: Clocks | None = None
    ) -> None:
        self.changed = asyncio.Event()
        self.num_dropped = 0
        self._boot = boot
        self._spool = spool
        self._limits = limits or BufferLimits()
        self._clocks = clocks or Clocks()
        self._decoder = msgspec.msgpack.Decoder(SpooledEvent)
        self._pending: deque[_Pending] = deque()
        self._num_bytes = 0
        self._num_sent = 0
        self._sequence = 0
        self._complaints = Occasionally()
        for item in spool.load():
            event = item.event
            frame = encode_frame(event)
            self._push(_Pending(event.boot, event.incarnation, event.sequence, None, item.segment, frame))

    @property
    def boot(self) -> str:
        """Whose events are next: the oldest boot that has any left, at last this process's own."""
        return self._pending[0].boot if self._pending else self._boot

    @property
    def num_pending(self) -> int:
        return len(self._pending)

    @property
    def num_in_flight(self) -> int:
        return self._num_sent

    def append(self, event: Event, incarnation: str, age_ms: float = 0.0) -> None:
        """Numbers the event and keeps it until it is committed. ``age_ms``: how long ago it happened."""
        self._sequence += 1
        if isinstance(event, TransferRecorded):
            # Relative to the event from here on, as both grow older alike; made absolute again when it is sent.
            event = msgspec.structs.replace(event, start_age_ms=event.start_age_ms - age_ms)
        frame = encode_frame(
            SpooledEvent(
                boot=self._boot,
                incarnation=incarnation,
                sequence=self._sequence,
                occurred_unix_ms=self._clocks.wall() * 1e3 - age_ms,
                event=event,
            )
        )
        occurred = self._clocks.monotonic() - age_ms / 1e3
        segment = self._spool.append(frame)
        self._push(_Pending(self._boot, incarnation, self._sequence, occurred, segment, frame))
        self.changed.set()

    def next_batch(self, boot: str) -> EventBatch | None:
        """The oldest events, if they are of ``boot``, all of one incarnation; ``None`` when nothing may be sent now.

        One batch is under way at a time: what happens meanwhile gathers into the next, and an acknowledgement of policy
        waits at the control plane behind one batch at most.
        """
        if self._num_sent or not self._pending or boot != self.boot:
            return None
        incarnation = self._pending[0].incarnation
        oldest = itertools.islice(self._pending, self._limits.max_batch)
        batch = tuple(itertools.takewhile(lambda p: (p.boot, p.incarnation) == (boot, incarnation), oldest))
        self._num_sent = len(batch)
        return EventBatch(boot=boot, incarnation=incarnation, events=tuple(map(self._numbered, batch)))

    def committed(self, boot: str, sequence: int) -> None:
        """Forgets what the control plane stored; news of a boot that isn't the oldest here changes nothing."""
        num_before = len(self._pending)
        while self._pending and self._pending[0].boot == boot and self._pending[0].sequence <= sequence:
            self._pop()
        if len(self._pending) < num_before:
            self._spool.note_commit(boot, sequence)
            self.changed.set()

    def rewind(self) -> None:
        """Everything uncommitted is to be sent again: the connection that carried it is gone."""
        self._num_sent = 0
        self.changed.set()

    def _push(self, pending: _Pending) -> None:
        self._pending.append(pending)
        self._num_bytes += len(pending.frame)
        while len(self._pending) > self._limits.max_events or self._num_bytes > self._limits.max_bytes:
            self._pop()
            self.num_dropped += 1
            if self._complaints.allows("dropped"):
                logger.error("events_dropped num_dropped=%d num_pending=%d", self.num_dropped, len(self._pending))

    def _pop(self) -> None:
        pending = self._pending.popleft()
        self._num_bytes -= len(pending.frame)
        self._num_sent = max(0, self._num_sent - 1)
        self._spool.forget(pending.segment)

    def _numbered(self, pending: _Pending) -> NumberedEvent:
        spooled = self._decoder.decode(memoryview(pending.frame)[HEADER_BYTES:])
        if pending.occurred is None:
            age_ms = max(0.0, self._clocks.wall() * 1e3 - spooled.occurred_unix_ms)
        else:
            age_ms = max(0.0, (self._clocks.monotonic() - pending.occurred) * 1e3)
        event = spooled.event
        if isinstance(event, TransferRecorded):
            event = msgspec.structs.replace(event, start_age_ms=event.start_age_ms + age_ms)
        return NumberedEvent(sequence=pending.sequence, age_ms=age_ms, event=event)
