"""The control plane as a router meets it: websocket and OTLP receiver on a real socket."""

import asyncio
import contextlib

import msgspec
from aiohttp import WSMsgType, web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from connector.protocol import (
    PROTOCOL_VERSION,
    EventBatch,
    EventsCommitted,
    FleetSnapshot,
    PolicyAck,
    Refused,
    RouterHello,
    RouterStatus,
    RouterToControl,
    TurnRecorded,
    Welcome,
)

ROUTER_TOKEN = "bh_router_test"

_decode = msgspec.json.Decoder(RouterToControl).decode


class FakeControlPlane:
    """Keeps what it is told; commits batches by (boot, sequence) like the real one, each event once."""

    def __init__(self) -> None:
        self.snapshot: FleetSnapshot | None = None
        self.hellos: list[RouterHello] = []
        self.acks: list[PolicyAck] = []
        self.statuses: list[RouterStatus] = []
        self.batches: list[EventBatch] = []
        self.turns: list[TurnRecorded] = []
        self.ages_ms: list[float] = []
        self.spans: list[Span] = []
        self.span_tokens: set[str] = set()
        self.refusal = ""
        self.is_committing = True
        self.committed: dict[str, int] = {}
        self.port = 0
        self._sockets: set[web.WebSocketResponse] = set()
        self._runner: web.ServerRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._runner = web.ServerRunner(web.Server(self._serve, access_log=None))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        for socket in list(self._sockets):
            await socket.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def publish(self, snapshot: FleetSnapshot) -> None:
        self.snapshot = snapshot
        for socket in list(self._sockets):
            await self._say(socket, snapshot)

    async def send_raw(self, text: str) -> None:
        for socket in list(self._sockets):
            await socket.send_str(text)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.rel_url.path == "/v1/traces":
            return await self._take_spans(request)
        if request.headers.get("Authorization") != f"Bearer {ROUTER_TOKEN}":
            return web.Response(status=403)
        assert request.rel_url.path == "/ws/router/"
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await self._take(socket, _decode(message.data))
        finally:
            self._sockets.discard(socket)
        return socket

    async def _take(self, socket: web.WebSocketResponse, message: RouterToControl) -> None:
        match message:
            case RouterHello():
                await self._greet(socket, message)
            case PolicyAck():
                self.acks.append(message)
            case RouterStatus():
                self.statuses.append(message)
            case EventBatch():
                self.batches.append(message)
                if self.is_committing:
                    await self._commit(socket, message)

    async def _greet(self, socket: web.WebSocketResponse, hello: RouterHello) -> None:
        self.hellos.append(hello)
        if self.refusal:
            await self._say(socket, Refused(reason=self.refusal))
            await socket.close()
            return
        committed = self.committed.get(hello.boot, 0)
        await self._say(
            socket,
            Welcome(protocol=PROTOCOL_VERSION, committed_sequence=committed, approved=True, heartbeat_seconds=0.1),
        )
        self._sockets.add(socket)
        if self.snapshot is not None:
            await self._say(socket, self.snapshot)

    async def _commit(self, socket: web.WebSocketResponse, batch: EventBatch) -> None:
        for numbered in batch.events:
            if numbered.sequence > self.committed.get(batch.boot, 0):
                assert isinstance(numbered.event, TurnRecorded)
                self.turns.append(numbered.event)
                self.ages_ms.append(numbered.age_ms)
                self.committed[batch.boot] = numbered.sequence
        await self._say(socket, EventsCommitted(boot=batch.boot, sequence=self.committed.get(batch.boot, 0)))

    async def _say(self, socket: web.WebSocketResponse, message: msgspec.Struct) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await socket.send_str(msgspec.json.encode(message).decode())

    async def _take_spans(self, request: web.BaseRequest) -> web.Response:
        self.span_tokens.add(request.headers.get("Authorization", ""))
        export = ExportTraceServiceRequest.FromString(await request.read())
        for resource_spans in export.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                self.spans.extend(scope_spans.spans)
        return web.Response(body=b"", content_type="application/x-protobuf")
