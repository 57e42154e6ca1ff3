"""Copies a reply from a server's connection to a client's as it arrives, no faster than the client reads.

The pieces go from one connection's callback straight to the other's transport. The body stays as it is; its framing is
the client connection's own.
"""

import asyncio
from collections.abc import Callable

from connector.http.connection import CLOSE, KEEP_ALIVE
from connector.http.errors import ExchangeFailedError, SourceBrokenError
from connector.http.headers import Pairs, render
from connector.http.messages import Request, status_line
from connector.http.reply import Reply

LAST_CHUNK = b"0\r\n\r\n"

See = Callable[[bytes], None]


async def relay(reply: Reply, request: Request, pairs: Pairs, see: See) -> None:
    """Sends head and body on; returns when the last byte is with the client's transport.

    ``pairs`` are the fields to send, with ``Content-Length`` only if the body has one. ``see`` gets each piece before
    it goes out. Raises ``SourceBrokenError`` when the reply breaks off; the client's connection is closed then.
    """
    running = Relay(reply, request, see)
    running.start(pairs)
    try:
        await running.wait()
    finally:
        request.connection.relay = reply.relay = None


class Relay:
    """``take`` and ``break_off`` are called by the server's side, ``hold`` and ``go_on`` by the client's."""

    __slots__ = ("_connection", "_done", "_error", "_is_chunked", "_is_over", "_reply", "_request", "_see")

    def __init__(self, reply: Reply, request: Request, see: See) -> None:
        self._reply = reply
        self._request = request
        self._connection = request.connection
        self._see = see
        self._is_chunked = False
        self._is_over = False
        self._error: ExchangeFailedError | None = None
        self._done: asyncio.Future[None] | None = None

    def start(self, pairs: Pairs) -> None:
        """Head and what has come of the body leave in one write."""
        reply, head = self._reply, self._head(pairs)
        self._request.is_answered = True
        body, reply.body = reply.body + reply.take_held(), b""
        if reply.connection is not None:
            reply.relay = self._connection.relay = self
            reply.connection.resume_reading()
        self._error = reply.error
        self._send(head, body, reply.connection is None and reply.error is None)
        if self._connection.is_paused:
            self.hold()

    async def wait(self) -> None:
        if not self._is_over and self._error is None:
            self._done = asyncio.get_running_loop().create_future()
            await self._done
        if self._error is not None:
            self._connection.cut(is_marked=not self._request.ends_with_connection)
            raise SourceBrokenError(str(self._error)) from self._error

    def take(self, data: bytes, is_last: bool) -> None:
        if is_last or not self._is_chunked:
            self._send(b"", data, is_last)
            return
        self._see(data)
        self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))

    def break_off(self, error: ExchangeFailedError) -> None:
        self._error = error
        self._wake()

    def hold(self) -> None:
        if self._reply.connection is not None:
            self._reply.connection.pause_reading()

    def go_on(self) -> None:
        if self._reply.connection is not None:
            self._reply.connection.resume_reading()

    def _send(self, head: bytes, data: bytes, is_last: bool) -> None:
        if data:
            self._see(data)
        if self._request.method == "HEAD":
            data = b""
        elif self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if is_last:
                data += LAST_CHUNK
        if head or data:
            self._connection.write(head + data if head else data)
        if is_last:
            self._is_over = True
            self._wake()

    def _wake(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _head(self, pairs: Pairs) -> bytes:
        """The framing: the body's own length, or chunks, or for HTTP/1.0 the end of the connection."""
        request = self._request
        has_length = any(name == b"content-length" for name, _ in pairs) or self._reply.status in (204, 304)
        self._is_chunked = not has_length and request.version == "1.1" and request.method != "HEAD"
        request.ends_with_connection = not has_length and not self._is_chunked
        if request.ends_with_connection:
            request.is_keep_alive = False
        line = b"" if request.version == "1.1" else KEEP_ALIVE
        line = line if self._connection.keeps_alive(request) else CLOSE
        framing = b"transfer-encoding: chunked\r\n" if self._is_chunked else b""
        return b"".join((status_line(self._reply.status, self._reply.reason), render(pairs), framing, line, b"\r\n"))
