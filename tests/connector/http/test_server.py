"""What the server takes, in which order, within which limits; and what it refuses."""

import asyncio

import pytest

from connector.http import Limits, Request, Response
from tests.connector.http.wires import GET, LIMITS, Echo, connect, post, settle, statuses


async def test_connection_is_kept_and_requests_sent_ahead_are_answered_in_order() -> None:
    service, order = Echo(), []
    go_on = asyncio.Event()

    async def slow_first(request: Request) -> Response:
        if request.path == "/a":
            await go_on.wait()
        order.append(request.path)
        return Response(200, request.path.encode())

    service.handler = slow_first
    _, connection, wire = connect(service)
    connection.data_received(GET + post(b"1") + GET.replace(b"/a", b"/c"))
    await settle()
    assert wire.sent == b""
    go_on.set()
    await settle()
    assert order == ["/a", "/b", "/c"]
    assert [part[-2:] for part in wire.take().split(b"HTTP/1.1 ")[1:]] == [b"/a", b"/b", b"/c"]
    connection.data_received(GET)
    await settle()
    assert statuses(wire.sent) == [200]
    assert not wire.is_ended


async def test_too_many_requests_sent_ahead_end_the_connection() -> None:
    service = Echo()
    service.handler = lambda _: asyncio.Event().wait()  # type: ignore[assignment, return-value]
    _, connection, wire = connect(service)
    connection.data_received(GET * 100)
    await settle()
    assert service.refusals == [400]
    assert len(connection.waiting) <= LIMITS.max_waiting + 1
    wire.close()
    await settle()


async def test_much_that_is_sent_ahead_waits_in_the_socket() -> None:
    service, go_on = Echo(), asyncio.Event()

    async def wait(request: Request) -> Response:
        await go_on.wait()
        return Response(200, b"")

    service.handler = wait
    _, connection, wire = connect(service, Limits(max_body_bytes=1 << 20))
    connection.data_received(GET + post(b"x" * 100_000))
    assert wire.is_reading is False
    go_on.set()
    await settle()
    assert wire.is_reading is True
    assert statuses(wire.sent) == [200, 200]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET /" + b"x" * 20_000, 431),
        (post(b"x" * 70_000), 413),
        (post(b"", b"Expect: something\r\n"), 417),
    ],
)
async def test_what_could_be_read_in_two_ways_or_is_too_much_is_refused_and_ends_the_connection(
    data: bytes, status: int
) -> None:
    service = Echo()
    _, connection, wire = connect(service)
    connection.data_received(data)
    await settle()
    assert statuses(wire.sent) == [status]
    assert b"\r\nconnection: close\r\n" in wire.take()
    assert service.requests == []
    connection.data_received(GET)
    await settle()
    assert wire.sent == b"", "nothing that follows is taken for a request"


async def test_chunked_body_is_bounded_and_its_trailer_adds_no_header() -> None:
    service = Echo()
    _, connection, wire = connect(service)
    head = b"POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.data_received(head + b"3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nAuthorization: Bearer stolen\r\n\r\n")
    await settle()
    assert service.requests == [("POST", "/b", b"abcde")]
    assert statuses(wire.take()) == [200]
    connection.data_received(head)
    for _ in range(7):
        connection.data_received(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
    await settle()
    assert statuses(wire.sent) == [413]


@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"x"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", b"x"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=", b"x"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"),
    ],
)
async def test_what_is_no_body_is_bounded_wherever_it_stands(begin: bytes, again: bytes) -> None:
    service = Echo()
    _, connection, wire = connect(service)
    connection.data_received(begin)
    for _ in range(40):
        connection.data_received(again * 1_000)
    await settle()
    assert statuses(wire.sent) == [431]
    assert service.requests == []


async def test_expectation_is_met_unless_the_head_is_refused_already() -> None:
    service = Echo()
    _, connection, wire = connect(service)
    asking = b"Expect: 100-continue\r\n"
    connection.data_received(post(b"hello", asking)[:-5])
    assert wire.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.data_received(b"hello")
    await settle()
    assert wire.take().endswith(b"POST /b hello")
    connection.data_received(post(b"hello", asking, path=b"/forbidden")[:-5])
    assert statuses(wire.sent) == [403]
    assert b"connection: close" in wire.sent, "nobody can tell whether the body still comes"


async def test_refused_body_is_read_away_and_the_connection_serves_on() -> None:
    service = Echo()
    _, connection, wire = connect(service)
    request = post(b"x" * 1_000, path=b"/forbidden")
    connection.data_received(request[:-500])
    assert statuses(wire.take()) == [403]
    connection.data_received(request[-500:] + GET)
    await settle()
    assert statuses(wire.sent) == [200]
    assert [path for _, path, _ in service.requests] == ["/a"]


async def test_head_gets_the_head_and_http_1_0_is_spoken() -> None:
    service = Echo()
    _, connection, wire = connect(service)
    connection.data_received(GET.replace(b"GET", b"HEAD"))
    await settle()
    sent = wire.take()
    assert b"content-length: 8\r\n" in sent
    assert sent.endswith(b"\r\n\r\n")
    connection.data_received(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    await settle()
    assert b"\r\nconnection: keep-alive\r\n" in wire.take()
    connection.data_received(b"GET /a HTTP/1.0\r\n\r\n")
    await settle()
    assert b"\r\nconnection: close\r\n" in wire.sent
    assert wire.is_ended
    assert not wire.is_aborted


async def test_offer_of_another_protocol_is_ignored() -> None:
    service = Echo()
    _, connection, wire = connect(service)
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    connection.data_received(post(b"", upgrade) + GET)
    await settle()
    assert [path for _, path, _ in service.requests] == ["/b", "/a"]
    assert statuses(wire.take()) == [200, 200]
    connection.data_received(post(GET, upgrade))
    await settle()
    assert statuses(wire.sent) == [400], "where such a body ends isn't the same for everybody"
    assert len(service.requests) == 2


@pytest.mark.parametrize("url", [b"/v1/models?x=1", b"http://host/v1/models", b"/v1/%6dodels"])
async def test_target_of_every_form_names_its_path(url: bytes) -> None:
    service = Echo()
    _, connection, _ = connect(service)
    connection.data_received(GET.replace(b"/a", url))
    await settle()
    assert [path for _, path, _ in service.requests] == ["/v1/models"]
