"""An agent's lease feed on a real socket, speaking the real protocol."""

import asyncio

import msgspec
from aiohttp import WSMsgType, web

from connector.protocol import (
    PROTOCOL_VERSION,
    CommandDone,
    EngineChanged,
    EngineState,
    FeedDelta,
    FeedSnapshot,
    LeaseEnded,
    LeaseOffer,
    LeaseRenewed,
    LeaseState,
    LoadChanged,
    ReleaseLease,
)

FEED_TOKEN = "bh_feed_test"

Change = LeaseOffer | LeaseRenewed | LeaseEnded | EngineChanged | LoadChanged


def bracketed(host: str) -> str:
    """The host as a URL holds it."""
    return f"[{host}]" if ":" in host else host


class FakeFeed:
    """Holds an engine's leases; what is pushed reaches every connected router in order."""

    def __init__(self, engine_name: str, host: str = "127.0.0.1") -> None:
        self.engine_name = engine_name
        self.host = host
        self.state = EngineState.READY
        self.incarnation = f"{engine_name}-1"
        self.leases: dict[str, LeaseOffer] = {}
        self.releases: list[ReleaseLease] = []
        self.num_connections = 0
        self.is_answering = True
        self.open_releases = 0
        self.most_open_releases = 0
        self._sequence = 100
        self._sockets: set[web.WebSocketResponse] = set()
        self._runner: web.ServerRunner | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"ws://{bracketed(self.host)}:{self.port}/feed"

    async def start(self) -> None:
        self._runner = web.ServerRunner(web.Server(self._serve, access_log=None))
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self.drop_connections()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def drop_connections(self) -> None:
        for socket in list(self._sockets):
            await socket.close()

    async def grant(self, offer: LeaseOffer) -> None:
        self.leases[offer.lease.lease_id] = offer
        await self.push(offer)

    async def end(self, lease_id: str, state: LeaseState = LeaseState.RELEASED, reason: str = "test") -> None:
        self.leases.pop(lease_id, None)
        await self.push(LeaseEnded(lease_id=lease_id, state=state, reason=reason))

    async def change(self, state: EngineState, incarnation: str) -> None:
        if incarnation != self.incarnation:
            self.leases.clear()
        self.state, self.incarnation = state, incarnation
        await self.push(EngineChanged(state=state, incarnation=incarnation))

    async def push(self, change: Change) -> None:
        self._sequence += 1
        await self._send_all(FeedDelta(sequence=self._sequence, change=change))

    def skip_numbers(self, count: int = 1) -> None:
        """As if deltas had been lost on the way."""
        self._sequence += count

    async def answer(self, release: ReleaseLease) -> None:
        held = next((i for i, o in self.leases.items() if release.key in (i, o.lease.turn_id)), None)
        if held is not None:
            await self.end(held)
        outcome = "released" if held else "not_found"
        self.open_releases -= 1
        await self._send_all(CommandDone(command_id=release.command_id, outcome=outcome))

    async def _send_all(self, message: msgspec.Struct) -> None:
        data = msgspec.msgpack.encode(message)
        for socket in list(self._sockets):
            if not socket.closed:
                await socket.send_bytes(data)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {FEED_TOKEN}":
            return web.Response(status=401)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.num_connections += 1
        await socket.send_bytes(msgspec.msgpack.encode(self._snapshot()))
        self._sockets.add(socket)
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    await self._take(msgspec.msgpack.decode(message.data, type=ReleaseLease))
        finally:
            self._sockets.discard(socket)
        return socket

    async def _take(self, release: ReleaseLease) -> None:
        self.releases.append(release)
        self.open_releases += 1
        self.most_open_releases = max(self.most_open_releases, self.open_releases)
        await asyncio.sleep(0)
        if self.is_answering:
            await self.answer(release)

    def _snapshot(self) -> FeedSnapshot:
        return FeedSnapshot(
            protocol=PROTOCOL_VERSION,
            boot="feed-boot",
            sequence=self._sequence,
            engine_name=self.engine_name,
            state=self.state,
            incarnation=self.incarnation,
            load=None,
            leases=tuple(self.leases.values()),
        )
