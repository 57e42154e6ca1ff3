"""The agents' end of an engine's link, for many turns at once: what was decided, granted and ended, by id."""

import asyncio
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from connector.framing import FrameDecoder, encode_frame
from connector.protocol import (
    CommandDone,
    EngineEvent,
    EngineHello,
    EngineToAgent,
    ExtendLease,
    LeaseEnded,
    LeaseOffer,
    LeaseRenewed,
    LegDecided,
    Ping,
    PolicyApplied,
    PolicyValues,
    Pong,
    ReleaseLease,
    SetPolicy,
)

WAIT_SECONDS = 120.0

T = TypeVar("T")


class LinkFollower:
    """Messages that nobody has asked for yet are kept until ``forget``; a wait past its deadline, or for a link that is
    closed, raises."""

    def __init__(self) -> None:
        self._decoder: FrameDecoder[Any] = FrameDecoder(EngineToAgent)
        self._found: dict[tuple[str, str], Any] = {}
        self._waiting: dict[tuple[str, str], list[asyncio.Future[Any]]] = defaultdict(list)
        self._reading: asyncio.Task[None] | None = None
        self._is_over = False
        self._writer: asyncio.StreamWriter
        self.num_ended: Counter[str] = Counter()

    async def connect(self, path: Path) -> EngineHello:
        reader, self._writer = await asyncio.open_unix_connection(str(path))
        self._reading = asyncio.create_task(self._read(reader))
        hello: EngineHello = await self._wait("hello", "")
        return hello

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._writer.close()

    # ------------------------------------------------ what the engine said

    async def decided(self, turn_id: str) -> LegDecided:
        decided: LegDecided = await self._wait("decided", turn_id)
        return decided

    async def lease_of_turn(self, turn_id: str) -> LeaseOffer:
        lease: LeaseOffer = await self._wait("lease", turn_id)
        return lease

    async def ended(self, lease_id: str) -> LeaseEnded:
        ended: LeaseEnded = await self._wait("ended", lease_id)
        return ended

    def has_ended(self, lease_id: str) -> bool:
        return ("ended", lease_id) in self._found

    def forget(self, *ids: str) -> None:
        for kind in ("decided", "lease", "ended", "renewed"):
            for known in ids:
                self._found.pop((kind, known), None)

    # ------------------------------------------------ what is asked of it

    async def release(self, key: str) -> str:
        """The outcome; the blocks are free only when ``ended`` says so."""
        command = ReleaseLease(command_id=str(uuid.uuid4()), key=key)
        self.send(command)
        done: CommandDone = await self._wait("done", command.command_id)
        return done.outcome

    async def extend(self, lease_id: str, ttl_seconds: float, *, pinned: bool = False) -> str:
        """The offer with the new expiry, or "" when the lease has ended."""
        self._found.pop(("renewed", lease_id), None)
        command = ExtendLease(command_id=str(uuid.uuid4()), lease_id=lease_id, ttl_seconds=ttl_seconds, pinned=pinned)
        self.send(command)
        done: CommandDone = await self._wait("done", command.command_id)
        if done.outcome == "not_found":
            return ""
        renewed: LeaseRenewed = await self._wait("renewed", lease_id)
        return renewed.offer

    async def set_policy(self, values: PolicyValues, revision: int = 1) -> None:
        self._found.pop(("policy", ""), None)
        self.send(SetPolicy(revision=revision, values=values))
        await self._wait("policy", "")

    async def ping(self) -> Pong:
        self._found.pop(("pong", ""), None)
        self.send(Ping(nonce=1))
        pong: Pong = await self._wait("pong", "")
        return pong

    def send(self, message: msgspec.Struct) -> None:
        self._writer.write(encode_frame(message))

    # ------------------------------------------------ the stream

    async def _wait(self, kind: str, key: str) -> Any:
        if (kind, key) in self._found:
            return self._found[kind, key]
        if self._is_over:
            raise ConnectionError("the engine's link is closed")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[kind, key].append(future)
        try:
            return await asyncio.wait_for(future, WAIT_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"the engine has not said '{kind}' of {key or 'itself'}") from None

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while data := await reader.read(1 << 20):
                for message in self._decoder.feed(data):
                    self._take(message)
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """A run that is told to end must not wait for answers that nobody reads any more."""
        self._is_over = True
        for waiting in self._waiting.values():
            for future in waiting:
                if not future.done():
                    future.set_exception(ConnectionError("the engine's link is closed"))

    def _take(self, message: object) -> None:
        if isinstance(message, EngineEvent):
            self._take_event(message.event)
        elif isinstance(message, LeaseOffer):
            self._found_one("lease", message.lease.turn_id, message)
        elif isinstance(message, LeaseRenewed):
            self._found_one("renewed", message.lease.lease_id, message)
        elif isinstance(message, CommandDone):
            self._found_one("done", message.command_id, message, is_kept=False)
        elif isinstance(message, EngineHello):
            self._found_one("hello", "", message)
        elif isinstance(message, PolicyApplied):
            self._found_one("policy", "", message)
        elif isinstance(message, Pong):
            self._found_one("pong", "", message)

    def _take_event(self, event: object) -> None:
        if isinstance(event, LegDecided):
            self._found_one("decided", event.turn_id, event)
        elif isinstance(event, LeaseEnded):
            self.num_ended[f"{event.state.value}: {event.reason}"] += 1
            self._found_one("ended", event.lease_id, event)

    def _found_one(self, kind: str, key: str, message: object, *, is_kept: bool = True) -> None:
        waiting = self._waiting.pop((kind, key), [])
        for future in waiting:
            if not future.done():
                future.set_result(message)
        if is_kept or not waiting:
            self._found[kind, key] = message
