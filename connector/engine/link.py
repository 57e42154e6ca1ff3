"""The engine's end of the link to its agent: never blocks or kills the engine, whatever the agent does.

One daemon thread owns the socket. The hot path appends to a bounded deque and pokes an eventfd. Policy is applied by
this thread at once; commands that touch vLLM's state wait in an inbox for the scheduler's next step. What happens while
no agent listens is kept, bounded, and sent after the hello of the next connection.
"""

import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from msgspec import structs

from connector.engine import guards
from connector.framing import FrameDecoder, encode_frame
from connector.protocol import (
    AgentToEngine,
    CommandDone,
    EngineEvent,
    EngineHello,
    EngineLoad,
    EngineToAgent,
    ExtendLease,
    LeaseOffer,
    LeaseRenewed,
    Ping,
    PolicyApplied,
    Pong,
    ReleaseLease,
    ResetCache,
    SetPeers,
    SetPolicy,
    TransferRecorded,
)

logger = logging.getLogger("vllm.backhaul.link")

MAX_PENDING_MESSAGES = 20_000
MAX_PENDING_COMMANDS = 10_000
SEND_TIMEOUT_SECONDS = 5.0
"""An agent that takes nothing for so long is disconnected; it resynchronises when it comes back."""
TICK_SECONDS = 1.0


class LinkCallbacks(msgspec.Struct, frozen=True):
    """What the thread asks of the engine. All are cheap reads or one assignment, safe beside the scheduler thread.

    ``tick`` is called about once a second, agent or no agent; ``wake`` whenever there is something for the next step.
    """

    hello: Callable[[], EngineHello]
    held_leases: Callable[[], Iterable[LeaseOffer]]
    set_policy: Callable[[SetPolicy], PolicyApplied]
    load: Callable[[int], EngineLoad]
    is_known: Callable[[str], bool]
    set_peers: Callable[[SetPeers], None] = lambda _message: None
    tick: Callable[[], object] = lambda: None
    wake: Callable[[], None] = lambda: None
    reset_cache: Callable[[ResetCache], None] = lambda _message: None


class EngineLink:
    """Listens on a unix socket, mode 0600. One agent at a time: a newer connection replaces the older one."""

    def __init__(self, path: Path, callbacks: LinkCallbacks) -> None:
        self._path = path
        self._callbacks = callbacks
        self._outbox: deque[tuple[float, EngineToAgent]] = deque()
        self._inbox: deque[ReleaseLease | ExtendLease] = deque()
        self._num_dropped = 0
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._is_closing = False
        self._has_policy = threading.Event()
        self._connection: socket.socket | None = None
        self._decoder: FrameDecoder[AgentToEngine] = FrameDecoder(AgentToEngine)
        self._server = _listen(path)
        self._thread = threading.Thread(target=self._run, name="backhaul-link", daemon=True)
        self._thread.start()

    # ------------------------------------------------ scheduler thread

    def send(self, message: EngineToAgent) -> None:
        """Hand over without waiting; the oldest pending message is dropped and counted when the bound is reached."""
        if len(self._outbox) >= MAX_PENDING_MESSAGES:
            self._outbox.popleft()
            self._num_dropped += 1
        self._outbox.append((time.monotonic(), message))
        os.eventfd_write(self._wake, 1)

    def take_commands(self) -> Iterable[ReleaseLease | ExtendLease]:
        while self._inbox:
            yield self._inbox.popleft()

    def wait_for_policy(self, seconds: float) -> bool:
        """Blocks until the agent has set a policy on this link, ``seconds`` at most; whether it has."""
        return self._has_policy.wait(seconds)

    def close(self) -> None:
        self._is_closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(timeout=2)
        self._path.unlink(missing_ok=True)

    # ------------------------------------------------ link thread

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            next_tick = 0.0
            while not self._is_closing:
                for key, _ in selector.select(TICK_SECONDS):
                    try:
                        self._handle(selector, key.fileobj)
                    except (OSError, ValueError) as error:
                        logger.warning("Agent disconnected: %s", error)
                        self._drop_connection(selector)
                    except Exception:
                        guards.count("link")
                        logger.exception("The link failed; its agent has to connect again")
                        self._drop_connection(selector)
                if (now := time.monotonic()) >= next_tick:
                    next_tick = now + TICK_SECONDS
                    self._tick()
            self._drop_connection(selector)
        self._server.close()

    def _tick(self) -> None:
        try:
            self._callbacks.tick()
        except Exception:
            guards.count("tick")
            logger.exception("The link's tick failed")

    def _handle(self, selector: selectors.BaseSelector, ready: object) -> None:
        if ready is self._server:
            self._accept(selector)
        elif ready == self._wake:
            os.eventfd_read(self._wake)
            self._flush()
        elif self._connection is not None and ready is self._connection:
            self._receive(selector, self._connection)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        self._drop_connection(selector)
        connection, _ = self._server.accept()
        connection.settimeout(SEND_TIMEOUT_SECONDS)
        self._connection = connection
        self._decoder = FrameDecoder(AgentToEngine)
        selector.register(connection, selectors.EVENT_READ)
        self._transmit(self._callbacks.hello())
        for offer in self._callbacks.held_leases():
            self._transmit(offer)
        self._flush()

    def _receive(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        data = connection.recv(65536)
        if not data:
            self._drop_connection(selector)
            return
        for message in self._decoder.feed(data):
            self._dispatch(message)

    def _dispatch(self, message: AgentToEngine) -> None:
        if isinstance(message, SetPolicy):
            applied = self._callbacks.set_policy(message)
            self._has_policy.set()
            self._callbacks.wake()
            self._transmit(applied)
        elif isinstance(message, SetPeers):
            self._callbacks.set_peers(message)
        elif isinstance(message, ResetCache):
            self._callbacks.reset_cache(message)
        elif isinstance(message, Ping):
            self._transmit(Pong(nonce=message.nonce, load=self._callbacks.load(self._num_dropped)))
        else:
            self._take_command(message)

    def _take_command(self, command: ReleaseLease | ExtendLease) -> None:
        # An idle engine takes no steps, so what it can't know is answered here; a held lease keeps it stepping.
        key = command.key if isinstance(command, ReleaseLease) else command.lease_id
        if not self._callbacks.is_known(key):
            self._transmit(CommandDone(command_id=command.command_id, outcome="not_found"))
        elif len(self._inbox) >= MAX_PENDING_COMMANDS:
            self._transmit(CommandDone(command_id=command.command_id, outcome="failed", detail="inbox full"))
        else:
            self._inbox.append(command)
            self._callbacks.wake()

    def _flush(self) -> None:
        while self._outbox and self._connection is not None:
            queued_at, message = self._outbox[0]
            self._transmit(_aged(message, (time.monotonic() - queued_at) * 1e3))
            self._outbox.popleft()

    def _transmit(self, message: EngineToAgent) -> None:
        if self._connection is not None:
            self._connection.sendall(encode_frame(message))

    def _drop_connection(self, selector: selectors.BaseSelector) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # One that failed while it was accepted is not registered yet.
            if connection in selector.get_map():
                selector.unregister(connection)
            connection.close()


def _listen(path: Path) -> socket.socket:
    """A stale socket is replaced; one that answers belongs to a live engine, and no other file is touched."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists() and not path.is_socket():
        raise RuntimeError(f"{path} is not a socket; backhaul_link_path must name a free path")
    with socket.socket(socket.AF_UNIX) as probe:
        if path.exists() and probe.connect_ex(str(path)) == 0:
            raise RuntimeError(f"another engine listens on {path}; give each engine its own backhaul_link_path")
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    old_mask = os.umask(0o177)
    try:
        server.bind(str(path))
    finally:
        os.umask(old_mask)
    server.listen(4)
    return server


def _aged(message: EngineToAgent, age_ms: float) -> EngineToAgent:
    """The message as of now: the time that it waited here counts towards its ages and off its remaining times."""
    if isinstance(message, LeaseOffer | LeaseRenewed):
        remaining = max(0.0, message.lease.remaining_seconds - age_ms / 1e3)
        return structs.replace(message, lease=structs.replace(message.lease, remaining_seconds=remaining))
    if not isinstance(message, EngineEvent):
        return message
    event = message.event
    if isinstance(event, TransferRecorded):
        event = structs.replace(event, start_age_ms=event.start_age_ms + age_ms)
    return EngineEvent(age_ms=message.age_ms + age_ms, event=event)
