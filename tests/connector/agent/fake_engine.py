"""An engine's end of the link on a real unix socket: hello, offers, policy read back, commands obeyed.

It can be frozen (the socket stays, nothing is read or written, as under SIGSTOP) and killed (the socket file stays,
nobody listens). ``kept`` is what happened while no agent was there: sent after the offers of the next hello.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import TypeVar

from connector.framing import FrameDecoder, encode_frame
from connector.protocol import (
    PROTOCOL_VERSION,
    AgentToEngine,
    CommandDone,
    EngineEvent,
    EngineHello,
    ExtendLease,
    LeaseEnded,
    LeaseExtended,
    LeaseOffer,
    LeaseRenewed,
    LeaseState,
    LegDecided,
    Message,
    Ping,
    PolicyApplied,
    PolicyValues,
    Pong,
    ReleaseLease,
    SetPolicy,
    TransferRecorded,
)
from tests.connector.agent.samples import engine_info, load, offer

M = TypeVar("M")


class FakeEngine:
    """Outlives its restarts: ``start`` after ``kill`` is the next process, with no leases and default policy."""

    def __init__(self, path: Path, *, name: str = "d0", protocol: int = PROTOCOL_VERSION) -> None:
        self.path = path
        self.name = name
        self.protocol = protocol
        self.received: list[AgentToEngine] = []
        self.leases: dict[str, LeaseOffer] = {}
        self.num_connections = 0
        self.announces_too_many = 0
        self.kept: list[Message] = []
        self.answers_commands = True
        self.answers_pings = True
        self.load = load()
        self._num_starts = 0
        self._policy = SetPolicy(revision=0, values=PolicyValues())
        self._awake = asyncio.Event()
        self._awake.set()
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def incarnation(self) -> str:
        return f"inc-{self._num_starts}"

    @property
    def revision(self) -> int:
        return self._policy.revision

    async def start(self) -> None:
        self._num_starts += 1
        self.leases.clear()
        self._policy = SetPolicy(revision=0, values=PolicyValues())
        await self.listen()

    async def listen(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def kill(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop_connection()

    def drop_connection(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    def freeze(self) -> None:
        self._awake.clear()

    def thaw(self) -> None:
        self._awake.set()

    @property
    def is_connected(self) -> bool:
        return self._writer is not None

    def of(self, kind: type[M]) -> list[M]:
        return [message for message in self.received if isinstance(message, kind)]

    def send(self, message: Message) -> None:
        assert self._writer is not None, "no agent is connected"
        self._writer.write(encode_frame(message))

    def send_bytes(self, data: bytes) -> None:
        assert self._writer is not None, "no agent is connected"
        self._writer.write(data)

    def grant(self, lease_id: str, **facts: float | str | bool) -> LeaseOffer:
        granted = offer(lease_id, **facts)  # type: ignore[arg-type]
        self.leases[lease_id] = granted
        self.send(granted)
        return granted

    def end(self, lease_id: str, state: LeaseState = LeaseState.EXPIRED, reason: str = "ttl") -> None:
        self.leases.pop(lease_id, None)
        self.happen(LeaseEnded(lease_id=lease_id, state=state, reason=reason))

    def happen(self, event: LeaseEnded | TransferRecorded | LegDecided, age_ms: float = 0.0) -> None:
        self.send(EngineEvent(age_ms=age_ms, event=event))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._awake.wait()
        self.drop_connection()
        self._writer = writer
        self.num_connections += 1
        self._greet()
        decoder: FrameDecoder[AgentToEngine] = FrameDecoder(AgentToEngine)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65536):
                await self._awake.wait()
                for message in decoder.feed(data):
                    self.received.append(message)
                    self._answer(message)
        if self._writer is writer:
            self._writer = None
        writer.close()

    def _greet(self) -> None:
        hello = EngineHello(
            protocol=self.protocol,
            engine=engine_info(self.incarnation, self.name),
            policy=PolicyApplied(revision=self._policy.revision, values=self._policy.values),
            num_leases=len(self.leases) + self.announces_too_many,
        )
        self.send(hello)
        for message in (*self.leases.values(), *self.kept):
            self.send(message)
        self.kept.clear()

    def _answer(self, message: AgentToEngine) -> None:
        match message:
            case Ping(nonce=nonce) if self.answers_pings:
                self.send(Pong(nonce=nonce, load=self.load))
            case SetPolicy():
                self._policy = message
                self.send(PolicyApplied(revision=message.revision, values=message.values))
            case ReleaseLease() if self.answers_commands:
                self._release(message)
            case ExtendLease() if self.answers_commands:
                self._extend(message)

    def _release(self, command: ReleaseLease) -> None:
        known = command.key in self.leases
        if known:
            self.end(command.key, LeaseState.RELEASED, command.reason)
        self.send(CommandDone(command_id=command.command_id, outcome="released" if known else "not_found"))

    def _extend(self, command: ExtendLease) -> None:
        lease = LeaseExtended(lease_id=command.lease_id, remaining_seconds=command.ttl_seconds, pinned=command.pinned)
        self.send(LeaseRenewed(lease=lease, offer=f"renewed-{command.lease_id}"))
        self.send(CommandDone(command_id=command.command_id, outcome="pinned" if command.pinned else "extended"))
