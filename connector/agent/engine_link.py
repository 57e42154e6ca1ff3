"""The connection to the engine's unix socket: always retried, and honest about whether the engine answers.

``stalled`` means that the socket is open and no ``Pong`` (or hello) came for ``stall_after`` seconds; ``down`` that
there is no connection. The engine holds only one connection and a newer one replaces the older, so an agent that is
started twice shows as two that take turns, at the pace of the back-off.
"""

import asyncio
import logging
from pathlib import Path
from typing import Protocol

import msgspec

from connector.agent.backoff import Backoff, Occasionally
from connector.framing import FrameDecoder, encode_frame
from connector.protocol import (
    PROTOCOL_VERSION,
    SINCE,
    AgentToEngine,
    EngineHello,
    EngineState,
    EngineToAgent,
    Ping,
    Pong,
)

logger = logging.getLogger(__name__)

READ_BYTES = 256 * 1024

MAX_UNSENT_BYTES = 4 * 1024 * 1024
"""A stopped engine reads nothing; past this the agent refuses to queue more for it."""

LATE_TICK_SECONDS = 0.5


class LinkTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. ``stable_after``: a connection that lived this long resets the back-off."""

    ping_interval: float = 1.0
    stall_after: float = 2.0
    tick: float = 0.25
    stable_after: float = 2.0
    first_retry: float = 0.05
    longest_retry: float = 1.0


class LinkObserver(Protocol):
    """Called on the event loop; must not block. ``engine_answered`` implies ``ready``."""

    def engine_answered(self, hello: EngineHello) -> None:
        """The first ``Pong`` afterwards was written after everything that belongs to the hello."""

    def message_received(self, message: EngineToAgent) -> None: ...

    def state_changed(self, state: EngineState) -> None: ...

    def engine_gone(self) -> None:
        """Nobody listens on the socket any more: the process that held the leases is dead."""


class EngineLink:
    """``run`` never returns; ``send`` may be called at any time from the event loop."""

    def __init__(self, path: Path, engine_name: str, timing: LinkTiming | None = None) -> None:
        self.state = EngineState.DOWN
        self._path = path
        self._engine_name = engine_name
        self._timing = timing or LinkTiming()
        self._observer: LinkObserver
        self._writer: asyncio.StreamWriter | None = None
        self._complaints = Occasionally()
        self._greeted = False
        self._protocol = 0
        self._nonce = 0
        self._nonce_answered = 0
        self._last_answer = 0.0
        self._next_ping = 0.0

    def send(self, message: AgentToEngine) -> bool:
        """False when no engine is there to take it, or one of a protocol that doesn't know it.

        True promises delivery only while the connection lives.
        """
        writer = self._writer
        if writer is None or not self._greeted or writer.is_closing():
            return False
        if self._protocol < SINCE.get(type(message), 0):
            return False
        if writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            return False
        writer.write(encode_frame(message))
        return True

    async def run(self, observer: LinkObserver) -> None:
        self._observer = observer
        backoff = Backoff(self._timing.first_retry, self._timing.longest_retry)
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                reader, writer = await asyncio.open_unix_connection(self._path, limit=READ_BYTES)
            except (ConnectionRefusedError, FileNotFoundError):
                self._observer.engine_gone()
            except OSError as error:
                self._complain("link_connect_failed", error)
            else:
                await self._serve(reader, writer)
            if loop.time() - started > self._timing.stable_after:
                backoff.reset()
            await asyncio.sleep(backoff.next_delay())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Returns when the connection ended, whoever ended it."""
        self._writer = writer
        self._greeted = False
        self._nonce_answered = self._nonce
        self._last_answer = asyncio.get_running_loop().time()
        watchdog = asyncio.create_task(self._watch())
        try:
            await self._read(reader)
        except (OSError, ValueError) as error:
            self._complain("link_broken", error)
        finally:
            watchdog.cancel()
            self._writer = None
            writer.close()
            self._change(EngineState.DOWN)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decoder: FrameDecoder[EngineToAgent] = FrameDecoder(EngineToAgent)
        while data := await reader.read(READ_BYTES):
            for message in decoder.feed(data):
                self._receive(message)

    def _receive(self, message: EngineToAgent) -> None:
        if not self._greeted:
            self._greet(message)
        elif isinstance(message, EngineHello):
            raise ValueError("a second hello on one connection")
        else:
            if isinstance(message, Pong):
                self._answered()
            self._observer.message_received(message)

    def _greet(self, message: EngineToAgent) -> None:
        if not isinstance(message, EngineHello):
            raise ValueError(f"{type(message).__name__} came before the hello")
        if abs(message.protocol - PROTOCOL_VERSION) > 1:
            raise ValueError(f"the engine speaks protocol {message.protocol}, this agent {PROTOCOL_VERSION}")
        if message.engine.name != self._engine_name:
            raise ValueError(f"{self._path} belongs to engine {message.engine.name}, not to {self._engine_name}")
        self._greeted = True
        self._protocol = message.protocol
        self._last_answer = asyncio.get_running_loop().time()
        self.state = EngineState.READY
        logger.info("engine_answered engine=%s incarnation=%s", message.engine.name, message.engine.incarnation)
        self._observer.engine_answered(message)
        self._ping()

    def _answered(self) -> None:
        self._last_answer = asyncio.get_running_loop().time()
        self._nonce_answered = self._nonce
        self._change(EngineState.READY)

    async def _watch(self) -> None:
        """One ping is outstanding at most: a stopped engine must not be sent an endless queue of them."""
        clock = asyncio.get_running_loop().time
        while True:
            now = clock()
            if self._greeted and now >= self._next_ping and self._nonce_answered == self._nonce:
                self._ping()
            if now - self._last_answer > self._timing.stall_after:
                self._change(EngineState.STALLED)
            await asyncio.sleep(self._timing.tick)
            self._forgive(clock() - now - self._timing.tick)

    def _ping(self) -> None:
        self._nonce += 1
        self._next_ping = asyncio.get_running_loop().time() + self._timing.ping_interval
        self.send(Ping(nonce=self._nonce))

    def _forgive(self, lateness: float) -> None:
        """When this process itself was paused, the engine's answers may lie unread: the pause isn't its silence."""
        if lateness > LATE_TICK_SECONDS:
            self._last_answer = min(self._last_answer + lateness, asyncio.get_running_loop().time())

    def _change(self, state: EngineState) -> None:
        if state is not self.state:
            logger.info("engine_state engine=%s from=%s to=%s", self._engine_name, self.state, state)
            self.state = state
            self._observer.state_changed(state)

    def _complain(self, topic: str, error: Exception) -> None:
        if self._complaints.allows(f"{topic} {error}"):
            logger.error("%s path=%s error=%s", topic, self._path, error)
