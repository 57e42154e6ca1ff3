"""Both ends of the HTTP package without sockets: transports that keep what is written, a service that echoes."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

from connector.http import EnginePool, HttpServer, Limits, Reply, Request, Response, relay
from connector.http.connection import Connection
from connector.http.exchange import ClientConnection

LIMITS = Limits(max_body_bytes=64 * 1024)


class Wire(asyncio.Transport):
    """A transport in memory; ``fill`` is what a full buffer would do."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.sent = b""
        self.is_reading = True  # type: ignore[method-assign, assignment]
        self.is_ended = self.is_aborted = self.has_sent_eof = False
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        assert not self.has_sent_eof, "written after the end"
        self.sent += data

    def write_eof(self) -> None:
        self.has_sent_eof = True

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.is_ended

    def pause_reading(self) -> None:
        self.is_reading = False  # type: ignore[method-assign, assignment]

    def resume_reading(self) -> None:
        self.is_reading = True  # type: ignore[method-assign, assignment]

    def close(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self.protocol.connection_lost(None)

    def abort(self) -> None:
        self.is_aborted = True
        self.close()

    def take(self) -> bytes:
        sent, self.sent = self.sent, b""
        return sent


class Echo:
    """Answers with method, path and body; what a test wants to see of the requests is kept."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes]] = []
        self.handler: Callable[[Request], Awaitable[Response | None]] | None = None
        self.refusals: list[int] = []
        self.forbidden = "/forbidden"

    def admit(self, request: Request) -> Response | None:
        return Response(403, b"no") if request.path == self.forbidden else None

    def refuse(self, status: int, message: str, request: Request | None = None) -> Response:
        self.refusals.append(status)
        return Response(status, message.encode(), close=True)

    async def answer(self, request: Request) -> Response | None:
        self.requests.append((request.method, request.path, request.body))
        if self.handler is not None:
            return await self.handler(request)
        return Response(200, b"%b %b %b" % (request.method.encode(), request.path.encode(), request.body))


def connect(service: Echo, limits: Limits = LIMITS) -> tuple[HttpServer, Connection, Wire]:
    server = HttpServer(service, limits)
    connection = Connection(server)
    return server, connection, Wire(connection)


async def settle() -> None:
    """Lets everything that is ready run."""
    for _ in range(10):
        await asyncio.sleep(0)


def pool(**changes: float) -> EnginePool:
    given = {"connect_seconds": 5.0, "idle_seconds": 3.0, "silence_seconds": 5.0}
    return EnginePool(**(given | changes))


def ask(engines: EnginePool, max_bytes: int | None = None) -> tuple[ClientConnection, Wire, "asyncio.Future[Reply]"]:
    """A request that is on its way to a server which hasn't said anything yet."""
    connection = ClientConnection(engines, ("engine", 80, False))
    wire = Wire(connection)
    return connection, wire, connection.send(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n", b"{}", max_bytes)


def relaying(reply: Reply, seen: list[bytes]) -> Callable[[Request], Awaitable[None]]:
    async def handler(request: Request) -> None:
        pairs = [pair for pair in reply.headers.pairs if pair[0] != b"transfer-encoding"]
        await relay(reply, request, pairs, seen.append)

    return handler


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The data in pieces, none empty."""
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


def dechunked(reply: bytes) -> tuple[bytes, bytes]:
    """Head and body of a reply in chunks, which must end as it should."""
    head, _, rest = reply.partition(b"\r\n\r\n")
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        if length == 0:
            assert rest == b"\r\n"
            return head, body
        body += rest[:length]
        rest = rest[length + 2 :]


GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def post(body: bytes, headers: bytes = b"", path: bytes = b"/b") -> bytes:
    return b"POST " + path + b" HTTP/1.1\r\nHost: x\r\n" + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


def statuses(sent: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"(?:^|\n|[^1])HTTP/1\.1 (\d{3}) ", sent)]
