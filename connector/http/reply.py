"""A server's answer as it comes in."""

import asyncio
from typing import TYPE_CHECKING

from connector.http.errors import ExchangeFailedError, ReplyTooLargeError
from connector.http.headers import Headers

if TYPE_CHECKING:
    from connector.http.exchange import ClientConnection
    from connector.http.relay import Relay

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
        self.relay: Relay | None = None
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
