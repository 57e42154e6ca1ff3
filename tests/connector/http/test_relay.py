"""Replies on their way through: unchanged, at once, no faster than the client reads."""

import asyncio

import pytest

from connector.http import ExchangeFailedError
from tests.connector.http.wires import Echo, ask, connect, dechunked, pool, relaying, settle

REQUEST = b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_first_bytes_leave_in_one_write_with_the_head_and_each_piece_as_it_comes() -> None:
    engine, _, opened = ask(pool())
    engine.data_received(HEAD + chunk(b"one") + chunk(b"two"))
    service, seen = Echo(), []
    service.handler = relaying(await opened, seen)  # type: ignore[assignment]
    _, client, wire = connect(service)
    client.data_received(REQUEST)
    await settle()
    assert wire.take().endswith(b"\r\n\r\n6\r\nonetwo\r\n")
    engine.data_received(chunk(b"three"))
    assert wire.take() == b"5\r\nthree\r\n"
    engine.data_received(chunk(b"four") + b"0\r\n\r\n")
    assert wire.take() == b"4\r\nfour\r\n0\r\n\r\n"
    await settle()
    assert seen == [b"onetwo", b"three", b"four"]
    assert not wire.is_ended


async def test_slow_client_holds_the_server_back() -> None:
    engine, engine_wire, opened = ask(pool())
    engine.data_received(HEAD + chunk(b"one"))
    service = Echo()
    service.handler = relaying(await opened, [])  # type: ignore[assignment]
    _, client, _ = connect(service)
    client.data_received(REQUEST)
    await settle()
    client.pause_writing()
    assert engine_wire.is_reading is False
    client.resume_writing()
    assert engine_wire.is_reading is True


async def test_body_that_nobody_relays_yet_is_bounded() -> None:
    engine, engine_wire, opened = ask(pool())
    engine.data_received(HEAD + chunk(b"one"))
    reply = await opened
    for _ in range(10):
        if engine_wire.is_reading:
            engine.data_received(chunk(b"x" * 100_000))
    assert engine_wire.is_reading is False
    service = Echo()
    service.handler = relaying(reply, [])  # type: ignore[assignment]
    _, client, wire = connect(service)
    client.data_received(REQUEST)
    await settle()
    assert engine_wire.is_reading is True
    assert len(wire.sent) > 300_000


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_reply_that_breaks_off_breaks_the_clients_too(version: bytes) -> None:
    engine, engine_wire, opened = ask(pool())
    engine.data_received(HEAD + chunk(b"one"))
    service = Echo()
    service.handler = relaying(await opened, [])  # type: ignore[assignment]
    _, client, wire = connect(service)
    client.data_received(REQUEST.replace(b"1.1", version))
    await settle()
    engine_wire.close()
    await settle()
    assert wire.is_ended
    assert wire.is_aborted is (version == b"1.0" or wire.is_aborted)
    assert not wire.sent.endswith(b"0\r\n\r\n")


async def test_reply_that_broke_off_before_it_was_relayed_is_no_whole_one() -> None:
    engine, engine_wire, opened = ask(pool())
    engine.data_received(HEAD + chunk(b"one"))
    reply = await opened
    engine_wire.close()
    assert isinstance(reply.error, ExchangeFailedError)
    service = Echo()
    service.handler = relaying(reply, [])  # type: ignore[assignment]
    _, client, wire = connect(service)
    client.data_received(REQUEST)
    await settle()
    assert wire.is_ended
    assert not wire.sent.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("answer", "version", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", b"1.1", b"content-length: 5\r\n\r\nhello"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", b"1.1", b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
        (HEAD + chunk(b"hello") + b"0\r\n\r\n", b"1.0", b"connection: close\r\n\r\nhello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"1.1", b"HTTP/1.1 204 No Content\r\n\r\n"),
    ],
)
async def test_framing_is_the_clients_own(answer: bytes, version: bytes, expected: bytes) -> None:
    engine, _, opened = ask(pool())
    engine.data_received(answer)
    engine.eof_received()
    service = Echo()
    service.handler = relaying(await opened, [])  # type: ignore[assignment]
    _, client, wire = connect(service)
    client.data_received(REQUEST.replace(b"1.1", version))
    await settle()
    assert wire.sent.endswith(expected)
    assert wire.is_ended is (version == b"1.0")


async def test_client_that_leaves_ends_the_servers_work() -> None:
    engine, engine_wire, opened = ask(pool())
    engine.data_received(HEAD + chunk(b"one"))
    reply = await opened
    service, ended = Echo(), asyncio.Event()
    going = relaying(reply, [])

    async def handler(request: object) -> None:
        try:
            await going(request)  # type: ignore[arg-type]
        finally:
            reply.close()
            ended.set()

    service.handler = handler  # type: ignore[assignment]
    _, client, wire = connect(service)
    client.data_received(REQUEST)
    await settle()
    wire.close()
    await ended.wait()
    assert engine_wire.is_aborted


async def test_pieces_of_every_size_come_out_whole() -> None:
    engine, _, opened = ask(pool())
    body = bytes(range(256)) * 40
    engine.data_received(HEAD)
    pieces = [body[start : start + size] for start, size in ((0, 1), (1, 2), (3, 7), (10, 500), (510, len(body)))]
    engine.data_received(chunk(pieces[0]))
    service, seen = Echo(), []
    service.handler = relaying(await opened, seen)  # type: ignore[assignment]
    _, client, wire = connect(service)
    client.data_received(REQUEST)
    await settle()
    for piece in pieces[1:]:
        engine.data_received(chunk(piece))
    engine.data_received(b"0\r\n\r\n")
    await settle()
    assert dechunked(wire.sent)[1] == b"".join(seen) == body
