"""A server's answer as it comes in."""

import asyncio
from typing import TYPE_CHECKING, Protocol

from connector.http.errors import ExchangeFailedError, ReplyTooLargeError, SourceBrokenError
from connector.http.headers import Headers

if TYPE_CHECKING:
    from connector.http.exchange import ClientConnection


class Sink(Protocol):
    """Who takes the body as it comes."""

    def take(self, data: bytes, is_last: bool) -> None: ...

    def break_off(self, error: ExchangeFailedError) -> None: ...


HELD_BYTES = 256 * 1024
"""How much of a body is taken before somebody relays it; then the server has to wait."""


class Reply:
    """``body``: the whole one if ``max_bytes`` was given, else what had come when the reply was handed over.

    ``opened`` settles when there is something to hand over; ``connection`` is there until the body is whole.
    """

    __slots__ = (
        "_held",
        "_num_held",
        "body",
        "connection",
        "error",
        "headers",
        "max_bytes",
        "opened",
        "reason",
        "relay",
        "status",
    )

    def __init__(self, connection: "ClientConnection", opened: "asyncio.Future[Reply]", max_bytes: int | None) -> None:
        self.connection: ClientConnection | None = connection
        self.opened = opened
        self.max_bytes = max_bytes
        self.status = 0
        self.reason = b""
        self.headers = Headers([])
        self.body = b""
        self.relay: Sink | None = None
        self.error: ExchangeFailedError | None = None
        self._num_held = 0
        self._held: list[bytes] = []

    @property
    def is_whole(self) -> bool:
        return self.connection is None and self.error is None

    def take(self, pieces: list[bytes], is_last: bool) -> None:
        """More of the body; ``pieces`` is the caller's again afterwards."""
        if self.relay is not None:
            self.relay.take(pieces[0] if len(pieces) == 1 else b"".join(pieces), is_last)
            return
        self._held += pieces
        self._num_held += sum(map(len, pieces))
        is_piecewise = self.max_bytes is None
        if self.max_bytes is not None and self._num_held > self.max_bytes:
            self.close()
            self._settle_with(ReplyTooLargeError(f"more than {self.max_bytes} bytes"))
        elif not self.opened.done():
            if is_last or (is_piecewise and self._held):
                self.body = self.take_held()
                self.opened.set_result(self)
        elif self._num_held > HELD_BYTES and self.connection is not None:
            self.connection.pause_reading()

    def take_held(self) -> bytes:
        """What came since the reply was handed over."""
        held = b"".join(self._held)
        self._held, self._num_held = [], 0
        return held

    def fail(self, error: ExchangeFailedError) -> None:
        """The rest won't come."""
        self.connection, self.error = None, error
        if self.relay is not None:
            self.relay.break_off(error)
        else:
            self._settle_with(error)

    def close(self) -> None:
        """Gives up what hasn't come yet: the server sees its connection end. May be called at any time."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abandon()

    def _settle_with(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)


class _Rest:
    """Puts the pieces together."""

    def __init__(self, reply: Reply, max_bytes: int) -> None:
        self._reply = reply
        self._max_bytes = max_bytes
        self._pieces = [reply.body, reply.take_held()]
        self._size = sum(map(len, self._pieces))
        self.whole: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def take(self, data: bytes, is_last: bool) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > self._max_bytes:
            self._reply.close()
            self._settle(ReplyTooLargeError(f"more than {self._max_bytes} bytes"))
        elif is_last and not self.whole.done():
            self.whole.set_result(b"".join(self._pieces))

    def break_off(self, error: ExchangeFailedError) -> None:
        self._settle(SourceBrokenError(str(error)))

    def _settle(self, error: Exception) -> None:
        if not self.whole.done():
            self.whole.set_exception(error)


async def gather(reply: Reply, max_bytes: int) -> bytes:
    """The whole body of a reply that was handed over with its first bytes.

    Raises ``SourceBrokenError`` when it breaks off, ``ReplyTooLargeError`` when it is longer. Cancelled, it gives up.
    """
    rest = _Rest(reply, max_bytes)
    if reply.error is not None:
        rest.break_off(reply.error)
    else:
        reply.relay = rest
        if reply.connection is not None:
            reply.connection.resume_reading()
        rest.take(b"", reply.connection is None)
    try:
        return await rest.whole
    except asyncio.CancelledError:
        reply.close()
        raise
    finally:
        reply.relay = None
