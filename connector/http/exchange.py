"""One connection to a server: a request out, its answer in, then the next."""

import asyncio
import time
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from connector.http.errors import ExchangeFailedError
from connector.http.headers import Headers, Pairs
from connector.http.reply import Reply

if TYPE_CHECKING:
    from connector.http.client import EnginePool
    from connector.http.target import Origin

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 256

JOINED_BYTES = 64 * 1024
"""Head and body up to this size go out as one string; copying a larger body would cost more than a second write."""


class ClientConnection(asyncio.Protocol):
    """``reply`` is the one under way. ``since`` and ``seen_reads`` are the sweep's, which looks for silence."""

    def __init__(self, pool: "EnginePool", origin: "Origin") -> None:
        self.origin = origin
        self.reply: Reply | None = None
        self.num_reads = 0
        self.seen_reads = 0
        self.since = 0.0
        self.started = 0.0
        self.is_reused = False
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._pairs: Pairs = []
        self._reason = b""
        self._bare_size = 0
        self._is_keep_alive = False
        self._is_in_body = False
        self._ends_with_connection = False
        self._is_over = False
        self._is_paused = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def takes_whole(self) -> bool:
        return self.reply is not None and self.reply.max_bytes is not None

    def send(self, head: bytes, body: bytes, max_bytes: int | None) -> "asyncio.Future[Reply]":
        """Writes the request. The future is settled with the reply, or with why there is none."""
        opened: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.reply = Reply(self, opened, max_bytes)
        self.started = self.since = time.monotonic()
        self.num_reads = self.seen_reads = 0
        self._is_in_body = self._ends_with_connection = self._is_over = False
        self._bare_size = 0
        transport = self._transport
        if transport is None:
            self.fail("reset", "the connection is closed")
        elif len(body) <= JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        return opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = HttpResponseParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._parser = None
        self._pool.forget(self)
        if self.reply is not None:
            self.fail("reset", str(exc) if exc else "the server closed the connection")

    def eof_received(self) -> None:
        """A body without a length ends here; anything else breaks off, which ``connection_lost`` tells."""
        if self.reply is not None and self._is_in_body and self._ends_with_connection:
            self._is_over = True
            self._hand_over(self.reply)

    def data_received(self, data: bytes) -> None:
        self.num_reads += 1
        reply = self.reply
        if reply is None or self._parser is None:
            self.abandon()
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if not self._is_over:
                self.fail("reset", f"not valid HTTP/1.1: {error}")
                return
            self._is_keep_alive = False
        pieces = self._pieces
        if self._is_over:
            self._hand_over(reply)
        elif pieces:
            self._bare_size = 0
            reply.take(pieces, False)
            pieces.clear()
        else:
            self._bare_size += len(data)
            if self._bare_size > MAX_HEAD_BYTES:
                self.fail("reset", f"{MAX_HEAD_BYTES} bytes came that are no body")

    def on_message_begin(self) -> None:
        """Ends the parser's work at a message that nobody asked for: nothing of it may get into the one before."""
        if self._is_over:
            raise ValueError("more than one answer")
        self._pairs = []
        self._reason = b""

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self._pairs) >= MAX_FIELDS:
            raise ValueError("too many header fields")
        self._pairs.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        reply, parser = self.reply, self._parser
        if reply is None or parser is None or self._is_over:
            return
        status = parser.get_status_code()
        if 100 <= status < 200:
            return
        reply.status, reply.reason, reply.headers = status, self._reason, Headers(self._pairs)
        self._pairs = []
        self._is_keep_alive = parser.should_keep_alive()
        self._is_in_body = True
        coding = reply.headers.raw(b"transfer-encoding")
        if coding is not None and coding.strip().lower() != b"chunked":
            raise ValueError("a transfer coding that was not asked for")
        has_length = coding is not None or reply.headers.raw(b"content-length") is not None
        self._ends_with_connection = not has_length and status not in (204, 304)

    def on_message_complete(self) -> None:
        if self._is_in_body:
            self._is_over = True

    def pause_writing(self) -> None:
        """Requests are in memory as a whole already; the transport holds what the server doesn't take yet."""

    def resume_writing(self) -> None:
        pass

    def pause_reading(self) -> None:
        if self.is_open and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_open and self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def fail(self, reason: str, detail: str) -> None:
        """Ends exchange and connection."""
        reply, self.reply = self.reply, None
        is_stale = reason == "reset" and self.is_reused and self.num_reads == 0
        self.abandon()
        if reply is not None:
            reply.fail(ExchangeFailedError(reason, detail, is_stale))

    def abandon(self) -> None:
        """Closes at once, whatever is under way; nobody hears of it any more."""
        self.reply = None
        self._pool.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def _hand_over(self, reply: Reply) -> None:
        """What has come goes on. A whole answer frees the connection before that, so that its reader may use it."""
        pieces, is_over = self._pieces, self._is_over
        if is_over:
            self.reply = reply.connection = None
            self.resume_reading()
            if self._is_keep_alive and not self._ends_with_connection:
                self.is_reused = True
                self._pool.put_back(self)
            else:
                self.abandon()
        reply.take(pieces, is_over)
        pieces.clear()
