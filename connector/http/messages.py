"""A request as the server hands it over, and a small answer to it."""

import time
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

from connector.http.headers import Headers, Pairs, render

if TYPE_CHECKING:
    from connector.http.connection import Connection

_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_REASONS[499] = b"Client Closed Request"

_date = (0, b"")


def date_now() -> bytes:
    """The ``Date`` field's value, made once a second."""
    global _date  # noqa: PLW0603
    now = int(time.time())
    if _date[0] != now:
        _date = (now, formatdate(now, usegmt=True).encode())
    return _date[1]


class Response:
    """An answer that is sent in one piece. ``close`` ends the connection after it."""

    __slots__ = ("body", "close", "pairs", "reason", "status")

    def __init__(
        self, status: int, body: bytes, pairs: Pairs | None = None, *, reason: bytes = b"", close: bool = False
    ) -> None:
        self.status = status
        self.body = body
        self.pairs: Pairs = [] if pairs is None else pairs
        self.reason = reason or _REASONS.get(status, b"")
        self.close = close

    def render(self, connection: bytes, *, with_body: bool) -> bytes:
        """Head and body; ``connection`` is the whole ``Connection`` field or empty."""
        has_date = any(name == b"date" for name, _ in self.pairs)
        return b"".join(
            (
                status_line(self.status, self.reason),
                render(self.pairs),
                b"" if has_date else b"date: %b\r\n" % date_now(),
                b"content-length: %d\r\n" % len(self.body),
                connection,
                b"\r\n",
                self.body if with_body else b"",
            )
        )


def status_line(status: int, reason: bytes) -> bytes:
    return b"HTTP/1.1 %d %b\r\n" % (status, reason)


class Request:
    """One request of a client. ``body`` is whole once the service is asked for an answer.

    ``arrived`` is monotonic seconds: when the head was there. ``principal``: whom the service admitted it as;
    ``is_operator``: and whether that one may be told how the service works.
    ``is_answered``: the head of its answer is out.
    """

    __slots__ = (
        "arrived",
        "body",
        "connection",
        "ends_with_connection",
        "headers",
        "is_answered",
        "is_keep_alive",
        "is_operator",
        "is_whole",
        "method",
        "path",
        "pieces",
        "principal",
        "refusal",
        "size",
        "version",
    )

    def __init__(self, connection: "Connection") -> None:
        self.connection = connection
        self.method = ""
        self.path = ""
        self.headers = Headers([])
        self.body = b""
        self.pieces: list[bytes] = []
        self.size = 0
        self.version = "1.1"
        self.is_keep_alive = False
        self.is_whole = False
        self.is_answered = False
        self.ends_with_connection = False
        self.refusal: Response | None = None
        self.arrived = 0.0
        self.principal = ""
        self.is_operator = False
