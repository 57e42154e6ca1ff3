"""What the sockets of agents and routers have in common: the door, the frames, and who may still speak."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, ParamSpec, TypeVar

import msgspec
from channels.db import database_sync_to_async
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, InterfaceError, OperationalError
from redis.exceptions import RedisError

from connector.protocol import PROTOCOL_VERSION, Refused
from controlplane.accounts.actions import note_token_used
from controlplane.accounts.models import ApiToken, TokenKind
from controlplane.accounts.secrets import bearer_secret
from controlplane.accounts.selectors import valid_token

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

MAX_FRAME_CHARS = 8 * 1024 * 1024
"""Holds a snapshot of some 25,000 leases."""
HELLO_SECONDS = 10.0
CLOSE_POLICY_VIOLATION = 1008
CLOSE_TOO_BIG = 1009
CLOSE_TRY_AGAIN = 1013


HELLO_THREADS = ThreadPoolExecutor(2, thread_name_prefix="hello")
"""Of all sockets together: when thousands come back at once, the heartbeats of those that are in must not wait."""


async def in_hello_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like ``in_thread``, for the work of a hello."""
    run: Callable[P, Awaitable[T]] = database_sync_to_async(function, thread_sensitive=False, executor=HELLO_THREADS)
    return await run(*args, **kwargs)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs ORM work in the pool of threads. Not thread-sensitive: all sockets would wait for one thread otherwise."""
    run: Callable[P, Awaitable[T]] = database_sync_to_async(function, thread_sensitive=False)
    return await run(*args, **kwargs)


class PeerConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """A socket on which a peer says hello first and speaks frames of one msgspec union.

    Frames are handled one after another, so a peer that sends faster than they can be stored is held back by TCP.
    Unknown frames are skipped: a peer may be one protocol version ahead.
    """

    token_kind: ClassVar[TokenKind]
    decoder: ClassVar[msgspec.json.Decoder[Any]]

    token: ApiToken
    peer_name = ""
    _is_closed = False
    _hello_timer: asyncio.TimerHandle | None = None

    async def connect(self) -> None:
        token = await in_thread(self._authenticate)
        if token is None:
            await self.close()
            return
        self.token = token
        await self.accept()
        self._hello_timer = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._give_up_waiting)

    def _authenticate(self) -> ApiToken | None:
        headers = dict(self.scope["headers"])
        secret = bearer_secret(headers.get(b"authorization", b"").decode("latin-1"))
        token = valid_token(secret, self.token_kind) if secret else None
        if token is not None:
            note_token_used(token)
        return token

    def _give_up_waiting(self) -> None:
        self._closing = asyncio.ensure_future(self.refuse(f"no hello within {HELLO_SECONDS:.0f} s"))

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if text_data is None or len(text_data) > MAX_FRAME_CHARS:
            await self.close(code=CLOSE_TOO_BIG)
            return
        try:
            frame = self.decoder.decode(text_data)
        except msgspec.MsgspecError as error:
            if not self.peer_name:
                await self.refuse(f"the first frame must be a hello: {error}")
                return
            logger.warning("event=frame_skipped kind=%s peer=%s error=%s", self.token_kind, self.peer_name, error)
            return
        self._stop_waiting()
        await self.handle(frame)

    async def dispatch(self, message: dict[str, Any]) -> None:
        """Whatever goes wrong closes this socket with a line that says why; the peer comes back and tells it again."""
        try:
            await super().dispatch(message)
        except (OperationalError, InterfaceError, RedisError):
            logger.exception("event=storage_away kind=%s peer=%s", self.token_kind, self.peer_name)
            if message["type"] == "websocket.disconnect":
                raise StopConsumer from None
            await self.close(code=CLOSE_TRY_AGAIN)
        except (ValidationError, DataError, IntegrityError, ValueError) as error:
            logger.exception("event=bad_frame kind=%s peer=%s", self.token_kind, self.peer_name)
            await self.refuse(f"the frame can't be stored: {error}")

    async def handle(self, frame: Any) -> None:
        raise NotImplementedError

    def greeted(self, name: str) -> None:
        """The hello was accepted; from here on the peer has a name."""
        self.peer_name = name

    def _stop_waiting(self) -> None:
        if self._hello_timer:
            self._hello_timer.cancel()

    def refusal_of(self, protocol: int, name: str) -> str | None:
        """Why this hello can't be taken, if it can't: one protocol version of skew is supported, one name a socket."""
        if abs(protocol - PROTOCOL_VERSION) > 1:
            return f"protocol {protocol} is not within one version of {PROTOCOL_VERSION}"
        if self.peer_name and self.peer_name != name:
            return f"this socket already speaks for {self.peer_name}"
        return None

    async def say(self, message: msgspec.Struct) -> None:
        await self.say_text(msgspec.json.encode(message).decode())

    async def say_text(self, text: str) -> None:
        """Sends, unless the socket is closing: then nobody listens any more."""
        if self._is_closed:
            return
        try:
            await self.send(text_data=text)
        except OSError:
            self._is_closed = True  # the peer left; its disconnect message is on the way

    async def close(self, code: int | None = None, reason: str | None = None) -> None:
        if not self._is_closed:
            self._is_closed = True
            await super().close(code=code, reason=reason)

    async def refuse(self, reason: str) -> None:
        logger.warning("event=peer_refused kind=%s peer=%s reason=%s", self.token_kind, self.peer_name, reason)
        await self.say(Refused(reason=reason))
        await self.close(code=CLOSE_POLICY_VIOLATION)

    async def hello_again(self, reason: str) -> None:
        """Closes so that the peer connects again and tells everything anew."""
        logger.info("event=peer_reconnect kind=%s peer=%s reason=%s", self.token_kind, self.peer_name, reason)
        await self.close(code=CLOSE_TRY_AGAIN)

    async def token_revoked(self, message: dict[str, Any]) -> None:
        if message["token_id"] == str(self.token.pk):
            await self.refuse("the token was revoked")

    async def disconnect(self, code: int) -> None:
        self._is_closed = True
        self._stop_waiting()
        if self.peer_name:
            await in_thread(self.note_disconnect)

    def note_disconnect(self) -> None:
        raise NotImplementedError
