"""Makes requests of what a client sends, within limits; all that is wrong with them becomes a refusal."""

import math
import time
from typing import TYPE_CHECKING

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from connector.http.headers import Headers, Pairs
from connector.http.limits import Limits
from connector.http.messages import Request, Response
from connector.http.requests import Service, fault_in, has_body, path_of

if TYPE_CHECKING:
    from connector.http.connection import Connection


class _FaultError(Exception):
    """Ends the parser's work; the answer is kept beside it."""


class Intake:
    """What is no body counts, wherever it stands: heads, chunk sizes, trailers.

    ``receiving`` is the request whose body is still to come, ``is_in_head`` true within the head of one.

    Requests are appended to the connection's queue as soon as their heads are there. Sets its deadline.
    """

    def __init__(self, connection: "Connection", service: Service, limits: Limits) -> None:
        self.receiving: Request | None = None
        self.is_in_head = False
        self._connection = connection
        self._service = service
        self._limits = limits
        self._max_head_bytes = limits.max_head_bytes
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._bare_size = 0
        self._url = b""
        self._pairs: Pairs = []
        self._fault: Response | None = None

    @property
    def is_amid_request(self) -> bool:
        return self.is_in_head or self.receiving is not None

    def feed(self, data: bytes) -> Response | None:
        """The answer after which nothing more can be understood, if there is something wrong."""
        body_size = self.receiving.size if self.receiving is not None else -1
        try:
            self._feed(data)
        except HttpParserError as error:
            return self._fault or self._service.refuse(400, f"The request is not valid HTTP/1.1: {error}.")
        if self.is_in_head or (self.receiving is not None and self.receiving.size == body_size):
            self._bare_size += len(data)
            if self._bare_size > self._limits.max_head_bytes:
                return self._too_large_head()
        return None

    def close(self) -> None:
        """Lets go of the parser, which holds this object in a circle."""
        self._parser = self.receiving = None

    def expired(self) -> Response:
        part = "head" if self.is_in_head else "body"
        return self._service.refuse(408, f"The request's {part} did not arrive in time.", self.receiving)

    def on_message_begin(self) -> None:
        if len(self._connection.waiting) >= self._limits.max_waiting:
            self._fail(self._service.refuse(400, "Too many requests were sent ahead."))
        self.is_in_head = True
        self._bare_size = 0
        self._url = b""
        self._pairs = []
        self._connection.deadline = time.monotonic() + self._limits.head_seconds

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or of a chunked body's trailer, which nobody reads."""
        if len(self._pairs) >= self._limits.max_fields:
            self._fail(self._too_large_head())
        self._pairs.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        request = self.receiving = self._make_request()
        self.is_in_head = False
        self._bare_size = 0
        self._pairs = []
        self._connection.waiting.append(request)
        request.refusal = (
            request.refusal or fault_in(request, self._limits, self._service) or self._service.admit(request)
        )
        expectation = request.headers.raw(b"expect")
        if expectation is not None:
            self._heed(request, expectation)

    def on_body(self, piece: bytes) -> None:
        request = self.receiving
        if request is None:
            return
        request.size += len(piece)
        if request.refusal is not None:
            return
        if request.size > self._limits.max_body_bytes:
            request.pieces.clear()
            message = f"The request body is larger than {self._limits.max_body_bytes} bytes."
            request.refusal = self._service.refuse(413, message, request)
        else:
            request.pieces.append(piece)

    def on_message_complete(self) -> None:
        request, self.receiving = self.receiving, None
        if request is None:
            return
        pieces = request.pieces
        request.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        request.pieces = []
        request.is_whole = True
        is_answered = self._connection.is_resting
        self._connection.deadline = time.monotonic() + self._limits.idle_seconds if is_answered else math.inf

    def _feed(self, data: bytes) -> None:
        """Offers to speak another protocol are ignored, as RFC 9110, section 7.8 allows."""
        while data and self._parser is not None:
            try:
                self._parser.feed_data(data)
                return
            except HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]

    def _fail(self, answer: Response) -> None:
        self._fault = answer
        raise _FaultError

    def _too_large_head(self) -> Response:
        return self._service.refuse(431, f"The request's head is larger than {self._limits.max_head_bytes} bytes.")

    def _make_request(self) -> Request:
        request, parser = Request(self._connection), self._parser
        if parser is not None:
            request.method = parser.get_method().decode()
            request.version = parser.get_http_version()
            request.is_keep_alive = parser.should_keep_alive()
            if parser.should_upgrade() and has_body(self._pairs):
                request.refusal = self._service.refuse(
                    400, "A request that offers an upgrade can't have a body.", request
                )
        request.path = path_of(self._url)
        request.headers = Headers(self._pairs)
        if len(self._url) + sum([len(name) + len(value) + 4 for name, value in self._pairs]) > self._max_head_bytes:
            self._fail(self._too_large_head())
        request.arrived = time.monotonic()
        self._connection.deadline = request.arrived + self._limits.body_seconds
        return request

    def _heed(self, request: Request, expectation: bytes) -> None:
        """After a refusal nobody can tell whether the body still comes, so the connection ends."""
        if expectation.lower() != b"100-continue" and request.refusal is None:
            request.refusal = self._service.refuse(417, "Only the expectation '100-continue' can be met.", request)
        if request.refusal is not None:
            request.is_keep_alive = False
        elif request.version == "1.1":
            self._connection.invite(request)
