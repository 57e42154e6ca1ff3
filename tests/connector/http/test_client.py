"""Answers of servers: every framing, every way to break off, connections kept and dropped."""

import asyncio
import contextlib

import pytest

from connector.http import ExchangeFailedError, ReplyTooLargeError, Target
from tests.connector.http.wires import ask, pool, settle
from tests.connector.router.waiting import eventually

SIZED = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
OPEN_ENDED = b"HTTP/1.1 200 OK\r\n\r\nhello"


@pytest.mark.parametrize(
    ("answer", "is_kept"),
    [
        (SIZED, True),
        (CHUNKED, True),
        (CHUNKED.replace(b"0\r\n\r\n", b"0\r\nX-Trailer: y\r\n\r\n"), True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + SIZED, True),
        (SIZED.replace(b"X-A: 1", b"Connection: close"), False),
        (SIZED.replace(b"HTTP/1.1", b"HTTP/1.0"), False),
        (SIZED + b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nunasked-f", False),
        (SIZED + b"garbage", False),
    ],
)
async def test_whole_answer_is_read_and_its_connection_kept_where_it_may(answer: bytes, is_kept: bool) -> None:
    engines = pool()
    connection, wire, opened = ask(engines, 100)
    connection.data_received(answer)
    reply = await opened
    assert (reply.status, reply.reason, reply.body) == (200, b"OK", b"hello")
    assert reply.is_whole
    assert wire.is_ended is not is_kept
    reply.close()
    assert wire.is_ended is not is_kept, "an answer that is whole has no connection to close"


async def test_body_without_a_length_ends_with_the_connection() -> None:
    connection, _, opened = ask(pool(), 100)
    connection.data_received(OPEN_ENDED)
    await settle()
    assert not opened.done()
    connection.eof_received()
    assert (await opened).body == b"hello"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-",
        SIZED[:-1],
        CHUNKED[:-2],
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    ],
)
async def test_answer_that_breaks_off_or_is_none_is_an_error(answer: bytes) -> None:
    connection, wire, opened = ask(pool(), 100)
    if answer:
        connection.data_received(answer)
    wire.close()
    with pytest.raises(ExchangeFailedError) as failed:
        await opened
    assert failed.value.reason == "reset"
    assert not failed.value.is_stale, "the connection was a fresh one"


@pytest.mark.parametrize("begin", [b"", b"2\r\nhe\r\n0\r\nX: ", b"2;x="])
async def test_server_that_sends_no_end_of_what_is_no_body_is_given_up(begin: bytes) -> None:
    connection, wire, opened = ask(pool(), 100)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
    connection.data_received(head + b"\r\n" + begin if begin else head + b"X: ")
    for _ in range(10):
        if not wire.is_ended:
            connection.data_received(b"x" * 10_000)
    assert wire.is_ended
    with pytest.raises(ExchangeFailedError):
        await opened


async def test_answer_that_is_too_large_is_given_up() -> None:
    connection, wire, opened = ask(pool(), 4)
    connection.data_received(SIZED.replace(b"Length: 5", b"Length: 500"))
    with pytest.raises(ReplyTooLargeError):
        await opened
    assert wire.is_ended


async def test_server_that_speaks_unasked_loses_its_connection() -> None:
    connection, wire, opened = ask(pool(), 100)
    connection.data_received(SIZED)
    await opened
    connection.data_received(SIZED)
    assert wire.is_ended


@pytest.mark.parametrize(("heard", "is_stale"), [(b"", True), (b"HTTP/1.1 2", False)])
async def test_kept_connection_that_was_closed_before_any_byte_is_told_apart(heard: bytes, is_stale: bool) -> None:
    connection, wire, opened = ask(pool(), 100)
    connection.data_received(SIZED)
    await opened
    opened = connection.send(b"POST / HTTP/1.1\r\n\r\n", b"", 100)
    if heard:
        connection.data_received(heard)
    wire.close()
    with pytest.raises(ExchangeFailedError) as failed:
        await opened
    assert failed.value.is_stale is is_stale


class Server:
    """A scripted server on a real socket."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.num_connections = 0
        self.num_closed = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> Target:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        return Target(("127.0.0.1", port, False), f"127.0.0.1:{port}", "/x")

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await eventually(lambda: self.num_closed == self.num_connections, "all connections have ended")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                if self.answers:
                    writer.write(self.answers.pop(0))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.num_closed += 1


async def test_connections_are_kept_for_a_while_and_cancelling_closes_them() -> None:
    server, engines = Server(), pool(idle_seconds=1000.0)
    target = await server.start()
    server.answers = [SIZED, SIZED]
    for _ in range(2):
        assert (await engines.request(target, target.head("GET") + b"\r\n", b"", 100)).body == b"hello"
    assert server.num_connections == 1
    waiting = asyncio.create_task(engines.request(target, target.head("GET") + b"\r\n", b"", 100))
    await eventually(lambda: engines.num_busy == 1, "the request is on its way")
    waiting.cancel()
    await eventually(lambda: server.num_closed == 1, "the server sees its connection end")
    assert engines.num_busy == 0
    server.answers = [SIZED]
    await engines.request(target, target.head("GET") + b"\r\n", b"", 100)
    assert server.num_connections == 2
    engines.close()
    await server.stop()


async def test_connection_that_idled_too_long_is_not_used_again() -> None:
    server, engines = Server(), pool(idle_seconds=0.0)
    target = await server.start()
    server.answers = [SIZED, SIZED]
    for _ in range(2):
        await engines.request(target, target.head("GET") + b"\r\n", b"", 100)
    assert server.num_connections == 2
    engines.close()
    await server.stop()


async def test_silent_server_is_given_up() -> None:
    server, engines = Server(), pool(silence_seconds=0.05)
    target = await server.start()
    sweeping = asyncio.create_task(engines.run())
    with pytest.raises(ExchangeFailedError) as failed:
        await engines.request(target, target.head("GET") + b"\r\n", b"", 100)
    assert failed.value.reason == "timeout"
    sweeping.cancel()
    await server.stop()


async def test_nobody_listens_is_told_as_such() -> None:
    server, engines = Server(), pool()
    target = await server.start()
    await server.stop()
    with pytest.raises(ExchangeFailedError) as failed:
        await engines.request(target, target.head("GET") + b"\r\n", b"", 100)
    assert failed.value.reason == "connect"
