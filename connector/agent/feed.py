"""The lease feed: every connected router gets the same snapshot-then-deltas, and a slow one never slows the others.

Deltas are numbered without gaps per boot and encoded once for all. A router that doesn't read fast enough is cut off;
it reconnects and gets a fresh snapshot, which is the only way to resynchronise.
"""

import asyncio
import hashlib
import hmac
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import WSMsgType, web

from connector.agent.commands import CommandDesk
from connector.agent.environment import Secret
from connector.protocol import (
    PROTOCOL_VERSION,
    EngineChanged,
    EngineLoad,
    EngineState,
    FeedDelta,
    FeedSnapshot,
    LeaseEnded,
    LeaseOffer,
    LeaseRenewed,
    LoadChanged,
    Message,
    ReleaseLease,
)

logger = logging.getLogger(__name__)

FeedChange = LeaseOffer | LeaseRenewed | LeaseEnded | EngineChanged | LoadChanged

MAX_REQUEST_BYTES = 64 * 1024


class FeedLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Per router, but ``max_routers``. Seconds, bytes and counts."""

    max_routers: int = 256
    max_queued_frames: int = 10_000
    max_queued_bytes: int = 32 * 1024 * 1024
    write_timeout: float = 10.0
    release_deadline: float = 5.0
    max_open_releases: int = 64
    load_interval: float = 1.0


class FeedState(msgspec.Struct):
    """What a snapshot shows beside the leases; kept by the mirror of the engine."""

    state: EngineState = EngineState.DOWN
    incarnation: str = ""
    load: EngineLoad | None = None


class Subscriber:
    """One router's queue of encoded frames. ``overflowed`` once it would have grown past its limits."""

    def __init__(self, first: bytes, limits: FeedLimits) -> None:
        self.overflowed = False
        self._limits = limits
        self._frames: deque[bytes] = deque([first])
        self._num_bytes = 0
        self._filled = asyncio.Event()
        self._filled.set()

    def push(self, frame: bytes) -> None:
        if self.overflowed:
            return
        if len(self._frames) >= self._limits.max_queued_frames or self._num_bytes > self._limits.max_queued_bytes:
            self.overflowed = True
            self._frames.clear()
            self._filled.set()
            return
        self._frames.append(frame)
        self._num_bytes += len(frame)
        self._filled.set()

    async def write_to(self, send: Callable[[bytes], Awaitable[None]]) -> str:
        """Sends frames for as long as the router keeps up; why it no longer does, or empty when it is gone."""
        while not self.overflowed:
            await self._filled.wait()
            self._filled.clear()
            while self._frames and not self.overflowed:
                frame = self._frames.popleft()
                self._num_bytes = max(0, self._num_bytes - len(frame))
                try:
                    await asyncio.wait_for(send(frame), self._limits.write_timeout)
                except TimeoutError:
                    return f"it read nothing for {self._limits.write_timeout:g} s"
                except OSError:
                    return ""
        return "it reads slower than the engine changes"


class FeedHub:
    """Numbers the changes and hands them to every subscriber. ``leases`` yields what the engine holds now."""

    def __init__(
        self,
        boot: str,
        engine_name: str,
        leases: Callable[[], tuple[LeaseOffer, ...]],
        limits: FeedLimits | None = None,
    ) -> None:
        self.engine = FeedState()
        self.limits = limits or FeedLimits()
        self._boot = boot
        self._engine_name = engine_name
        self._leases = leases
        self.sequence = 0
        self._subscribers: set[Subscriber] = set()
        self._encoder = msgspec.msgpack.Encoder()
        self._load_published_at = float("-inf")

    @property
    def num_subscribers(self) -> int:
        return len(self._subscribers)

    def publish(self, change: FeedChange) -> None:
        self.sequence += 1
        if not self._subscribers:
            return
        frame = self.encode(FeedDelta(sequence=self.sequence, change=change))
        for subscriber in self._subscribers:
            subscriber.push(frame)

    def set_engine(self, state: EngineState, incarnation: str) -> None:
        """Publishes a change of either."""
        if (state, incarnation) != (self.engine.state, self.engine.incarnation):
            self.engine.state = state
            self.engine.incarnation = incarnation
            self.publish(EngineChanged(state=state, incarnation=incarnation))

    def set_load(self, load: EngineLoad) -> None:
        """Publishes at most one load per ``load_interval``; a later pong brings what was left out."""
        now = asyncio.get_running_loop().time()
        if load != self.engine.load and now - self._load_published_at >= self.limits.load_interval:
            self._load_published_at = now
            self.engine.load = load
            self.publish(LoadChanged(load=load))

    def subscribe(self) -> Subscriber:
        """The snapshot and the deltas after it: no change can fall between."""
        snapshot = FeedSnapshot(
            protocol=PROTOCOL_VERSION,
            boot=self._boot,
            sequence=self.sequence,
            engine_name=self._engine_name,
            state=self.engine.state,
            incarnation=self.engine.incarnation,
            load=self.engine.load,
            leases=self._leases(),
        )
        subscriber = Subscriber(self.encode(snapshot), self.limits)
        self._subscribers.add(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)

    def encode(self, message: Message) -> bytes:
        return self._encoder.encode(message)


class FeedDoor:
    """The websocket handler: checks the token, feeds the router, and takes its requests to release leases."""

    def __init__(self, hub: FeedHub, commands: CommandDesk, token: Secret) -> None:
        self._hub = hub
        self._commands = commands
        self._token_digest = _digest(f"Bearer {token}")
        self._decoder = msgspec.msgpack.Decoder(ReleaseLease)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """401 for a wrong token, 503 when there are too many routers, else a websocket until either side leaves."""
        if not hmac.compare_digest(_digest(request.headers.get("Authorization", "")), self._token_digest):
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": "Bearer"}, text="wrong feed token\n")
        if self._hub.num_subscribers >= self._hub.limits.max_routers:
            raise web.HTTPServiceUnavailable(headers={"Retry-After": "5"}, text="too many routers\n")
        socket = web.WebSocketResponse(compress=False, heartbeat=20.0, max_msg_size=MAX_REQUEST_BYTES)
        await socket.prepare(request)
        subscriber = self._hub.subscribe()
        releases: set[asyncio.Task[None]] = set()
        writer = asyncio.create_task(self._write(request, socket, subscriber))
        try:
            await self._read(socket, subscriber, releases)
        finally:
            self._hub.unsubscribe(subscriber)
            for task in (writer, *releases):
                task.cancel()
        return socket

    async def _write(self, request: web.Request, socket: web.WebSocketResponse, subscriber: Subscriber) -> None:
        reason = await subscriber.write_to(socket.send_bytes)
        if reason:
            logger.warning("feed_router_cut_off peer=%s reason=%r", request.remote, reason)
        if request.transport is not None:
            # A close frame would queue behind what the router doesn't read.
            request.transport.abort()

    async def _read(
        self, socket: web.WebSocketResponse, subscriber: Subscriber, releases: set[asyncio.Task[None]]
    ) -> None:
        async for message in socket:
            if message.type is not WSMsgType.BINARY:
                await socket.close(code=1003, message=b"binary frames only")
                return
            try:
                release = self._decoder.decode(message.data)
            except msgspec.MsgspecError:
                await socket.close(code=1007, message=b"not a ReleaseLease")
                return
            if len(releases) >= self._hub.limits.max_open_releases:
                await socket.close(code=1008, message=b"too many open releases")
                return
            task = asyncio.create_task(self._release(release, subscriber))
            releases.add(task)
            task.add_done_callback(releases.discard)

    async def _release(self, release: ReleaseLease, subscriber: Subscriber) -> None:
        done = await self._commands.execute(release, self._hub.limits.release_deadline)
        subscriber.push(self._hub.encode(done))


def _digest(text: str) -> bytes:
    """Of one length for any input, so that the comparison tells nothing of the token's length."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
