"""The router's connection to the control plane: fleet and policy in, acks, status and turn events out.

It may be away for any length of time: requests are served from what is known, events wait in the spool.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec

from connector.protocol import (
    PROTOCOL_VERSION,
    ControlToRouter,
    EventsCommitted,
    FleetSnapshot,
    PolicyAck,
    Refused,
    RouterHello,
    RouterStatus,
    RouterToControl,
    Welcome,
)
from connector.router.live import Source
from connector.router.reconnect import Complaints, delays
from connector.router.spool import EventSpool

WRITE_EVERY_SECONDS = 0.1
COMMIT_SECONDS = 30.0
HANDSHAKE_SECONDS = 10.0
PING_SECONDS = 10.0
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
REFUSED_SECONDS = 5.0

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(ControlToRouter).decode
_encode = msgspec.json.Encoder().encode

Status = Callable[[], RouterStatus]
ApplySnapshot = Callable[[FleetSnapshot], Awaitable[PolicyAck]]
"""Puts a snapshot into effect and reads back what the router now obeys."""


class ControlLostError(Exception):
    """This connection is over; the reason is for the log."""


class ControlClient:
    """Run ``run`` as a task; cancel it to stop."""

    def __init__(
        self,
        url: str,
        token: Source[str],
        router_name: str,
        version: str,
        spool: EventSpool,
        apply: ApplySnapshot,
        status: Status,
    ) -> None:
        parts = urlsplit(url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        self._url = urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + "/ws/router/", "", ""))
        self._token = token
        self._name = router_name
        self._version = version
        self._spool = spool
        self._apply = apply
        self._status = status
        self._committed = asyncio.Event()
        self._heartbeat_seconds = 2.0
        self._complaints = Complaints(log, logging.WARNING)
        self.is_connected = False

    async def run(self) -> None:
        """Keeps a connection for ever."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_writing())
            waits = delays()
            while True:
                was_welcome = await self._connect_once(session)
                if was_welcome:
                    waits = delays()
                await asyncio.sleep(next(waits))

    async def _connect_once(self, session: aiohttp.ClientSession) -> bool:
        """True if the control plane welcomed the router before the connection ended."""
        was_welcome = False
        try:
            timeout = aiohttp.ClientWSTimeout(ws_close=2.0)
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                socket = await session.ws_connect(
                    self._url,
                    headers={"Authorization": f"Bearer {self._token.current}"},
                    heartbeat=PING_SECONDS,
                    max_msg_size=MAX_MESSAGE_BYTES,
                    timeout=timeout,
                )
            async with socket:
                await self._send(socket, self._hello())
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    self._check_welcome(await self._receive(socket))
                was_welcome = self.is_connected = True
                self._complaints.forget()
                log.info("event=control_connected url=%s", self._url)
                await self._converse(socket)
        except ControlLostError as error:
            self._complaints.tell("control_lost", self._url, str(error))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._complaints.tell("control_unreachable", self._url, str(error) or type(error).__name__)
        finally:
            self.is_connected = False
        return was_welcome

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        reporting = asyncio.create_task(self._report(socket))
        sending = asyncio.create_task(self._send_events(socket))
        receiving = asyncio.create_task(self._receive_all(socket))
        tasks = (reporting, sending, receiving)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive_all(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            message = await self._receive(socket)
            match message:
                case FleetSnapshot():
                    await self._send(socket, await self._apply(message))
                case EventsCommitted(boot=self._spool.boot):
                    self._spool.commit(message.sequence)
                    self._committed.set()
                case Refused():
                    raise ControlLostError(f"refused: {message.reason}")
                case _:
                    log.info("event=control_message_ignored type=%s", type(message).__name__)

    async def _report(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            await self._send(socket, self._status())
            await asyncio.sleep(self._heartbeat_seconds)

    async def _send_events(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """One batch at a time: the next one goes when the last is committed."""
        while True:
            await self._spool.added.wait()
            await self._spool.write()
            batch = self._spool.batch()
            if batch is None:
                self._spool.added.clear()
                continue
            self._committed.clear()
            await self._send(socket, batch)
            async with asyncio.timeout(COMMIT_SECONDS):
                await self._committed.wait()
            await asyncio.sleep(0 if len(batch.events) > 100 else WRITE_EVERY_SECONDS)

    async def _keep_writing(self) -> None:
        """Events reach the disk within 0.1 s also while the control plane is away."""
        while True:
            await self._spool.added.wait()
            await self._spool.write()
            await asyncio.sleep(WRITE_EVERY_SECONDS)

    def _hello(self) -> RouterHello:
        return RouterHello(
            protocol=PROTOCOL_VERSION, boot=self._spool.boot, router_name=self._name, router_version=self._version
        )

    def _check_welcome(self, message: ControlToRouter) -> None:
        if isinstance(message, Refused):
            raise ControlLostError(f"refused: {message.reason}")
        if not isinstance(message, Welcome):
            raise ControlLostError(f"answered the hello with {type(message).__name__}")
        if abs(message.protocol - PROTOCOL_VERSION) > 1:
            raise ControlLostError(f"speaks protocol {message.protocol}, this router {PROTOCOL_VERSION}")
        if not message.approved:
            log.warning("event=router_not_approved name=%s", self._name)
        self._heartbeat_seconds = max(0.1, message.heartbeat_seconds)
        self._spool.commit(message.committed_sequence)

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, message: RouterToControl) -> None:
        await socket.send_str(_encode(message).decode())

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> ControlToRouter:
        """The next message that this version understands."""
        while True:
            frame = await socket.receive()
            if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                raise ControlLostError(f"socket closed with code {socket.close_code}")
            try:
                return _decode(frame.data)
            except msgspec.MsgspecError as error:
                log.warning("event=control_message_unreadable error=%s", error)
