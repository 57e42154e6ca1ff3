"""However bytes are cut on their way, requests and replies are the same; and no bytes at all bring either end down."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from connector.http import ExchangeFailedError, Limits, ReplyTooLargeError
from tests.connector.http.wires import Echo, ask, connect, cut, dechunked, pool, relaying, settle

TOKEN = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12)
VALUE = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30)
OWN = {
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "upgrade",
    "expect",
    "keep-alive",
    "proxy-connection",
}
FIELDS = st.dictionaries(TOKEN.filter(lambda name: name not in OWN), VALUE, max_size=6)
PLACES = st.lists(st.integers(0, 10_000), max_size=12)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def framed(body: bytes, sizes: list[int], is_chunked: bool) -> tuple[bytes, bytes]:
    """A framing header and the body in it."""
    if not is_chunked:
        return b"Content-Length: %d\r\n" % len(body), body
    pieces = cut(body, sizes)
    return b"Transfer-Encoding: chunked\r\n", b"".join(b"%X\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


def lines(fields: dict[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode()


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, tuple[str, str, bytes], dict[str, str]]:
    """Bytes of a request, what they ask for, and its headers."""
    fields, body = draw(FIELDS), draw(st.binary(max_size=300))
    path = "/" + draw(TOKEN)
    framing, data = framed(body, draw(PLACES), draw(st.booleans()))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + lines(fields) + framing + b"\r\n"
    return head + data, ("POST", path, body), fields


@given(st.lists(requests(), min_size=1, max_size=4), PLACES)
def test_requests_are_the_same_however_they_are_cut(sent: list[Any], places: list[int]) -> None:
    async def work() -> None:
        service, headers = Echo(), []
        service.admit = lambda request: headers.append(request.headers)  # type: ignore[method-assign, func-returns-value]
        _, connection, wire = connect(service)
        for piece in cut(b"".join(data for data, _, _ in sent), places):
            connection.data_received(piece)
            await asyncio.sleep(0)
        await settle()
        await settle()
        assert service.requests == [expected for _, expected, _ in sent]
        assert wire.sent.count(b"HTTP/1.1 200 OK\r\n") == len(sent)
        for found, (_, _, fields) in zip(headers, sent, strict=True):
            assert {name: found.get(name.upper()) for name in fields} == {n: v.strip() for n, v in fields.items()}

    run(work())


@given(st.binary(max_size=2_000), FIELDS, st.booleans(), PLACES, PLACES, st.booleans())
def test_replies_are_the_same_however_they_are_cut(
    body: bytes, fields: dict[str, str], is_chunked: bool, sizes: list[int], places: list[int], is_whole: bool
) -> None:
    framing, data = framed(body, sizes, is_chunked)
    answer = b"HTTP/1.1 201 Made\r\n" + lines(fields) + framing + b"\r\n" + data

    async def work() -> None:
        engine, wire, opened = ask(pool(), 10_000 if is_whole else None)
        service, seen = Echo(), []
        _, client, out = connect(service)
        for piece in cut(answer, places):
            engine.data_received(piece)
            if opened.done() and service.handler is None:
                service.handler = relaying(opened.result(), seen)  # type: ignore[assignment]
                client.data_received(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.sleep(0)
        reply = await opened
        await settle()
        assert (reply.status, reply.reason) == (201, b"Made")
        assert {name: reply.headers.get(name) for name in fields} == {n: v.strip() for n, v in fields.items()}
        assert b"".join(seen) == body
        received = dechunked(out.sent)[1] if is_chunked else out.sent.partition(b"\r\n\r\n")[2]
        assert received == body
        assert not wire.is_ended

    run(work())


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                [
                    b"GET / HTTP/1.1\r\n",
                    b"POST / HTTP/1.1\r\n",
                    b"Host: x\r\n",
                    b"Content-Length: 5\r\n",
                    b"Transfer-Encoding: chunked\r\n",
                    b"Expect: 100-continue\r\n",
                    b"Connection: close\r\n",
                    b"Upgrade: x\r\nConnection: upgrade\r\n",
                    b"\r\n",
                    b"5\r\nhello\r\n",
                    b"0\r\n\r\n",
                    b"hello",
                ]
            ),
        ),
        max_size=20,
    )
)
def test_no_bytes_of_a_client_bring_the_server_down(pieces: list[bytes]) -> None:
    async def work() -> None:
        service = Echo()
        server, connection, wire = connect(service, Limits(max_body_bytes=10, max_head_bytes=200, max_waiting=4))
        for piece in pieces:
            connection.data_received(piece)
            await asyncio.sleep(0)
        await settle()
        connection.expire()
        wire.close()
        await settle()
        assert not server.connections
        assert all(len(body) <= 10 for _, _, body in service.requests)

    run(work())


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                [
                    b"HTTP/1.1 200 OK\r\n",
                    b"HTTP/1.1 100 Continue\r\n\r\n",
                    b"HTTP/1.1 204 No Content\r\n\r\n",
                    b"Content-Length: 5\r\n",
                    b"Transfer-Encoding: chunked\r\n",
                    b"\r\n",
                    b"5\r\nhello\r\n",
                    b"0\r\n\r\n",
                    b"hello",
                ]
            ),
        ),
        max_size=20,
    ),
    st.booleans(),
)
def test_no_bytes_of_a_server_leave_a_request_without_an_end(pieces: list[bytes], is_whole: bool) -> None:
    async def work() -> None:
        engines = pool()
        engine, wire, opened = ask(engines, 100 if is_whole else None)
        for piece in pieces:
            engine.data_received(piece)
        engine.eof_received()
        wire.close()
        assert opened.done()
        try:
            reply = await opened
        except (ExchangeFailedError, ReplyTooLargeError):
            return
        assert reply.is_whole or reply.error is not None

    run(work())
