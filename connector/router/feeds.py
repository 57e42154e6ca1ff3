"""Clients of the agents' lease feeds: one connection per engine, snapshot first, then numbered deltas."""

import asyncio
import logging
import secrets
from typing import Protocol

import aiohttp
import msgspec

from connector.protocol import (
    PROTOCOL_VERSION,
    CommandDone,
    FeedDelta,
    FeedSnapshot,
    FeedToRouter,
    ReleaseLease,
)
from connector.router.fleet import Fleet, dialable
from connector.router.live import Source
from connector.router.metrics import Metrics
from connector.router.reconnect import Complaints, delays

HANDSHAKE_SECONDS = 10.0
PING_SECONDS = 5.0
MAX_MESSAGE_BYTES = 256 * 1024 * 1024
MAX_UNSENT = 1_000

MAX_OPEN_RELEASES = 32
"""Releases asked and not yet answered; an agent cuts off a router that opens more than 64."""

log = logging.getLogger(__name__)

_decode = msgspec.msgpack.Decoder(FeedToRouter).decode
_encode = msgspec.msgpack.Encoder().encode


class FeedLostError(Exception):
    """This connection is over; the reason is for the log."""


class FeedListener(Protocol):
    """Takes what feeds tell, in order, on the event loop."""

    async def take_snapshot(self, engine: str, snapshot: FeedSnapshot) -> None: ...
    def take_delta(self, engine: str, delta: FeedDelta) -> None: ...
    def lose_feed(self, engine: str) -> None: ...


class FeedClient:
    """Keeps one feed connected. A gap in the numbers means that something was missed: it dials again at once."""

    def __init__(self, engine: str, url: str, token: Source[str], listener: FeedListener, metrics: Metrics) -> None:
        self.engine = engine
        self.url = url
        self._token = token
        self._listener = listener
        self._metrics = metrics
        self._unsent: asyncio.Queue[ReleaseLease] = asyncio.Queue(MAX_UNSENT)
        self._open = asyncio.Semaphore(MAX_OPEN_RELEASES)
        self._complaints = Complaints(log, logging.WARNING)
        self.is_connected = False
        self.was_tried = asyncio.Event()

    @property
    def num_unsent(self) -> int:
        return self._unsent.qsize()

    def release(self, key: str, reason: str) -> bool:
        """Queues a release; false when the feed is away: leases then end by their own deadline."""
        if not self.is_connected:
            return False
        try:
            self._unsent.put_nowait(ReleaseLease(command_id=secrets.token_hex(8), key=key, reason=reason))
        except asyncio.QueueFull:
            return False
        return True

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Keeps the connection for ever; cancel to stop."""
        waits = delays()
        while True:
            if await self._connect_once(session):
                waits = delays()
            await asyncio.sleep(next(waits))

    async def _connect_once(self, session: aiohttp.ClientSession) -> bool:
        """True if a snapshot came before the connection ended."""
        had_snapshot = False
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                socket = await session.ws_connect(
                    dialable(self.url),
                    headers={"Authorization": f"Bearer {self._token.current}"},
                    heartbeat=PING_SECONDS,
                    max_msg_size=MAX_MESSAGE_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                )
            async with socket:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    message = await self._receive(socket)
                sequence = await self._take_snapshot(message)
                had_snapshot = True
                await self._follow(socket, sequence)
        except FeedLostError as error:
            self._complaints.tell("feed_lost", self.engine, str(error))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self._complaints.tell("feed_unreachable", self.engine, str(error) or type(error).__name__)
        finally:
            self.was_tried.set()
            if had_snapshot:
                self.is_connected = False
                self._metrics.feeds_connected.dec()
                self._listener.lose_feed(self.engine)
        return had_snapshot

    async def _take_snapshot(self, message: FeedToRouter) -> int:
        if not isinstance(message, FeedSnapshot):
            raise FeedLostError(f"began with {type(message).__name__}")
        if abs(message.protocol - PROTOCOL_VERSION) > 1:
            raise FeedLostError(f"speaks protocol {message.protocol}, this router {PROTOCOL_VERSION}")
        if message.engine_name != self.engine:
            raise FeedLostError(f"is the feed of engine {message.engine_name}")
        await self._listener.take_snapshot(self.engine, message)
        self._metrics.feeds_connected.inc()
        self.is_connected = True
        self.was_tried.set()
        self._complaints.forget()
        log.info("event=feed_connected engine=%s leases=%s", self.engine, len(message.leases))
        return message.sequence

    async def _follow(self, socket: aiohttp.ClientWebSocketResponse, sequence: int) -> None:
        self._open = asyncio.Semaphore(MAX_OPEN_RELEASES)
        sending = asyncio.create_task(self._send_releases(socket))
        try:
            while True:
                message = await self._receive(socket)
                if isinstance(message, FeedDelta):
                    sequence += 1
                    if message.sequence != sequence:
                        self._metrics.feed_gaps.inc()
                        raise FeedLostError(f"expected delta {sequence}, got {message.sequence}")
                    self._listener.take_delta(self.engine, message)
                elif isinstance(message, CommandDone):
                    self._open.release()
                    self._metrics.releases.labels(_known(message.outcome)).inc()
                else:
                    raise FeedLostError("sent a second snapshot")
        finally:
            sending.cancel()

    async def _send_releases(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            release = await self._unsent.get()
            await self._open.acquire()
            await socket.send_bytes(_encode(release))

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> FeedToRouter:
        frame = await socket.receive()
        if frame.type is not aiohttp.WSMsgType.BINARY:
            raise FeedLostError(f"socket closed with code {socket.close_code}")
        try:
            return _decode(frame.data)
        except msgspec.MsgspecError as error:
            raise FeedLostError(f"sent what this version can't read: {error}") from error


def _known(outcome: str) -> str:
    return outcome if outcome in ("released", "not_found", "failed") else "other"


class Feeds:
    """One client per engine of the fleet; follows the fleet as it changes."""

    def __init__(self, token: Source[str], metrics: Metrics, fleet: Fleet) -> None:
        self._token = token
        self._listener: FeedListener | None = None
        self._metrics = metrics
        self._fleet = fleet
        self._session: aiohttp.ClientSession | None = None
        self._clients: dict[str, FeedClient] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def open(self, listener: FeedListener) -> None:
        self._listener = listener
        self._session = aiohttp.ClientSession()
        self.follow_fleet()

    async def wait_until_tried(self, seconds: float) -> None:
        """Returns when each feed gave its snapshot or failed once, or after ``seconds``."""
        tries = [asyncio.create_task(client.was_tried.wait()) for client in self._clients.values()]
        if tries:
            _, late = await asyncio.wait(tries, timeout=seconds)
            for task in late:
                task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for name in list(self._tasks):
            self._stop(name)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def follow_fleet(self) -> None:
        """Dials feeds of new engines, drops those of gone ones, dials again where the address changed."""
        wanted = {e.name: e.facts.feed_url for e in self._fleet if e.facts.feed_url and e.facts.state != "pending"}
        for name, client in list(self._clients.items()):
            if wanted.get(name) != client.url:
                self._stop(name)
        for name, url in wanted.items():
            if name not in self._clients and self._session is not None and self._listener is not None:
                client = FeedClient(name, url, self._token, self._listener, self._metrics)
                self._clients[name] = client
                self._tasks[name] = asyncio.create_task(client.run(self._session), name=f"feed {name}")

    @property
    def num_connected(self) -> int:
        return sum(client.is_connected for client in self._clients.values())

    @property
    def is_idle(self) -> bool:
        """No release waits to be sent."""
        return not any(client.is_connected and client.num_unsent for client in self._clients.values())

    def release(self, engine: str, key: str, reason: str) -> bool:
        """Asks the engine's agent to let ``key`` go; false if it can't be asked now."""
        client = self._clients.get(engine)
        is_sent = client is not None and client.release(key, reason)
        if not is_sent:
            self._metrics.releases.labels("unsent").inc()
            log.warning("event=release_unsent engine=%s key=%s reason=%s", engine, key, reason)
        return is_sent

    def _stop(self, name: str) -> None:
        del self._clients[name]
        self._tasks.pop(name).cancel()
