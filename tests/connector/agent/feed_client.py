"""A router's side of the lease feed: keeps what the feed says, and checks that no delta is missing."""

import asyncio

import aiohttp
import msgspec

from connector.protocol import (
    CommandDone,
    EngineChanged,
    EngineState,
    FeedDelta,
    FeedSnapshot,
    FeedToRouter,
    LeaseEnded,
    LeaseOffer,
    LeaseRenewed,
    LoadChanged,
    ReleaseLease,
)

FEED_TOKEN = "bh_feed_" + "f" * 43


class FeedClient:
    """``leases`` maps ids to offers as a router would hold them. A gap in the numbers fails the reader task."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self._session = session
        self._url = f"ws://127.0.0.1:{port}/feed"
        self.snapshot: FeedSnapshot | None = None
        self.sequence = 0
        self.state = EngineState.DOWN
        self.incarnation = ""
        self.leases: dict[str, LeaseOffer] = {}
        self.changes: list[object] = []
        self.done: list[CommandDone] = []
        self.socket: aiohttp.ClientWebSocketResponse
        self.reader: asyncio.Task[None]

    async def connect(self, token: str = FEED_TOKEN) -> "FeedClient":
        headers = {"Authorization": f"Bearer {token}"}
        self.socket = await self._session.ws_connect(self._url, headers=headers, max_msg_size=0)
        self.reader = asyncio.create_task(self._read())
        return self

    async def release(self, command: ReleaseLease) -> None:
        await self.socket.send_bytes(msgspec.msgpack.encode(command))

    async def close(self) -> None:
        await self.socket.close()
        await self.reader

    @property
    def is_over(self) -> bool:
        return self.reader.done()

    async def _read(self) -> None:
        decoder: msgspec.msgpack.Decoder[FeedToRouter] = msgspec.msgpack.Decoder(FeedToRouter)
        async for message in self.socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                return
            self._take(decoder.decode(message.data))

    def _take(self, message: FeedToRouter) -> None:
        if isinstance(message, FeedSnapshot):
            assert self.snapshot is None, "a second snapshot"
            self.snapshot = message
            self.sequence = message.sequence
            self.state, self.incarnation = message.state, message.incarnation
            self.leases = {held.lease.lease_id: held for held in message.leases}
        elif isinstance(message, FeedDelta):
            assert self.snapshot is not None, "a delta before the snapshot"
            assert message.sequence == self.sequence + 1, f"{message.sequence} after {self.sequence}"
            self.sequence = message.sequence
            self.changes.append(message.change)
            self._apply(message.change)
        else:
            self.done.append(message)

    def _apply(self, change: object) -> None:
        match change:
            case LeaseOffer():
                self.leases[change.lease.lease_id] = change
            case LeaseRenewed():
                held = self.leases[change.lease.lease_id]
                self.leases[change.lease.lease_id] = msgspec.structs.replace(held, offer=change.offer)
            case LeaseEnded():
                self.leases.pop(change.lease_id, None)
            case EngineChanged():
                if change.incarnation != self.incarnation:
                    self.leases.clear()
                self.state, self.incarnation = change.state, change.incarnation
            case LoadChanged():
                pass
