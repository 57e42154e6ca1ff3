"""A control plane on a real port: the agents' websocket with its bookkeeping, and an OTLP receiver.

Like the real one it commits only batches of the boot that said hello, drops what it has by sequence, and loses nothing
when it restarts: what it stored stays.
"""

import asyncio
import contextlib
from typing import TypeVar

import msgspec
from aiohttp import WSMsgType, web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from connector.protocol import (
    PROTOCOL_VERSION,
    AgentHello,
    AgentStatus,
    AgentToControl,
    Event,
    EventBatch,
    EventsCommitted,
    Message,
    NumberedEvent,
    Refused,
    SetPeers,
    SetPolicy,
    Welcome,
)

M = TypeVar("M")

AGENT_TOKEN = "bh_agent_" + "a" * 43


class FakeControlPlane:
    """``received`` keeps every message in order; ``stored`` every event that was committed, with its boot."""

    def __init__(self) -> None:
        self.policy: SetPolicy | None = None
        self.peers: SetPeers | None = None
        self.approved = True
        self.token = AGENT_TOKEN
        self.refusal: str | None = None
        self.protocol = PROTOCOL_VERSION
        self.commits = True
        self.received: list[AgentToControl] = []
        self.stored: list[tuple[str, NumberedEvent]] = []
        self.batches: list[EventBatch] = []
        self.num_handshakes = 0
        self.num_refused_handshakes = 0
        self.num_foreign_batches = 0
        self.span_statuses: list[int] = []
        self.span_authorizations: list[str] = []
        self.spans: list[Span] = []
        self.num_span_requests = 0
        self.port = 0
        self._boot = ""
        self._committed = 0
        self._sockets: set[web.WebSocketResponse] = set()
        self._transports: set[asyncio.Transport] = set()
        self._runner: web.AppRunner | None = None
        self._decoder: msgspec.json.Decoder[AgentToControl] = msgspec.json.Decoder(AgentToControl)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """On the same port as before, if there was one."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_get("/ws/agent/", self._agent)
        app.router.add_post("/v1/traces", self._traces)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """As if killed: connections break without a close frame."""
        self.drop_connections()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def drop_connections(self) -> None:
        for transport in self._transports:
            transport.abort()

    @property
    def is_connected(self) -> bool:
        return bool(self._sockets)

    @property
    def events(self) -> list[Event]:
        return [numbered.event for _, numbered in self.stored]

    def of(self, kind: type[M]) -> list[M]:
        return [message for message in self.received if isinstance(message, kind)]

    def shows(self, **values: object) -> bool:
        """Whether the latest status has these values; false while none has come."""
        statuses = self.of(AgentStatus)
        return bool(statuses) and all(getattr(statuses[-1], name) == value for name, value in values.items())

    async def push(self, message: Message) -> None:
        for socket in list(self._sockets):
            await socket.send_str(msgspec.json.encode(message).decode())

    async def push_text(self, text: str) -> None:
        for socket in list(self._sockets):
            await socket.send_str(text)

    def store_without_answer(self, batch: EventBatch) -> None:
        for event in batch.events:
            if event.sequence > self._committed:
                self.stored.append((batch.boot, event))
                self._committed = event.sequence

    async def _agent(self, request: web.Request) -> web.StreamResponse:
        self.num_handshakes += 1
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            self.num_refused_handshakes += 1
            raise web.HTTPForbidden
        socket = web.WebSocketResponse(max_msg_size=64 * 1024 * 1024)
        await socket.prepare(request)
        transport = request.transport
        assert transport is not None
        self._transports.add(transport)
        try:
            with contextlib.suppress(ConnectionError):
                await self._converse(socket)
        finally:
            self._sockets.discard(socket)
            self._transports.discard(transport)
        return socket

    async def _converse(self, socket: web.WebSocketResponse) -> None:
        async for message in socket:
            assert message.type is WSMsgType.TEXT
            received = self._decoder.decode(message.data)
            self.received.append(received)
            if isinstance(received, AgentHello):
                await self._greet(socket, received)
            elif isinstance(received, EventBatch) and self.approved:
                await self._store(socket, received)

    async def _greet(self, socket: web.WebSocketResponse, hello: AgentHello) -> None:
        if self.refusal is not None:
            await _say(socket, Refused(reason=self.refusal))
            await socket.close()
            return
        if hello.boot != self._boot:
            self._boot, self._committed = hello.boot, 0
        self._sockets.add(socket)
        await _say(
            socket,
            Welcome(
                protocol=self.protocol,
                committed_sequence=self._committed,
                approved=self.approved,
                heartbeat_seconds=0.1,
            ),
        )
        if self.peers is not None and self.approved:
            await _say(socket, self.peers)
        if self.policy is not None and self.approved:
            await _say(socket, self.policy)

    async def _store(self, socket: web.WebSocketResponse, batch: EventBatch) -> None:
        self.batches.append(batch)
        if batch.boot != self._boot:
            self.num_foreign_batches += 1
            await socket.close()
            return
        if not self.commits:
            return
        self.store_without_answer(batch)
        await _say(socket, EventsCommitted(boot=batch.boot, sequence=self._committed))

    async def _traces(self, request: web.Request) -> web.Response:
        self.num_span_requests += 1
        self.span_authorizations.append(request.headers.get("Authorization", ""))
        status = self.span_statuses.pop(0) if self.span_statuses else 200
        if status == 200:
            body = ExportTraceServiceRequest.FromString(await request.read())
            for resource in body.resource_spans:
                for scope in resource.scope_spans:
                    self.spans.extend(scope.spans)
        return web.Response(status=status)


async def _say(socket: web.WebSocketResponse, message: Message) -> None:
    await socket.send_str(msgspec.json.encode(message).decode())
