"""How a connection and its requests end: clients that leave or dawdle, services that fail, a server that stops."""

import asyncio
import time

import pytest

from connector.http import Request, Response
from tests.connector.http.wires import GET, LIMITS, Echo, connect, post, settle, statuses


async def test_client_that_leaves_cancels_its_request_at_once() -> None:
    service, ends = Echo(), []

    async def hang(request: Request) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append(request.path)
        raise AssertionError("unreachable")

    service.handler = hang
    server, connection, wire = connect(service)
    connection.data_received(GET)
    await settle()
    wire.close()
    await settle()
    assert ends == ["/a"]
    assert not server.connections


async def test_failure_of_the_service_cuts_the_connection() -> None:
    service = Echo()

    async def fail(request: Request) -> Response:
        raise ZeroDivisionError

    service.handler = fail
    _, connection, wire = connect(service)
    connection.data_received(GET)
    await settle()
    assert wire.is_aborted
    assert wire.sent == b""


@pytest.mark.parametrize(("sent", "status"), [(b"GET / HT", 408), (post(b"hello")[:-2], 408), (b"", None), (GET, None)])
async def test_client_that_takes_too_long_is_told_unless_it_is_idle(sent: bytes, status: int | None) -> None:
    service = Echo()
    _, connection, wire = connect(service)
    if sent:
        connection.data_received(sent)
    await settle()
    wire.take()
    limits = LIMITS
    longest = time.monotonic() + max(limits.head_seconds, limits.body_seconds, limits.idle_seconds)
    assert connection.deadline <= longest
    connection.expire()
    assert statuses(wire.sent) == ([] if status is None else [status])
    if status is None:
        assert wire.is_ended
    else:
        connection.expire()
        assert wire.is_aborted, "it was given time to read the answer, once"


async def test_answer_under_way_is_not_cut_off_by_the_clock() -> None:
    service, go_on = Echo(), asyncio.Event()

    async def wait(request: Request) -> Response:
        await go_on.wait()
        return Response(200, b"late")

    service.handler = wait
    _, connection, wire = connect(service)
    connection.data_received(GET + b"GET /half")
    await settle()
    connection.expire()
    go_on.set()
    await settle()
    assert wire.sent.endswith(b"late")


async def test_ending_server_closes_each_connection_with_its_answer_and_cancels_the_rest() -> None:
    service = Echo()
    server, connection, wire = connect(service)
    server.stop_listening()
    connection.data_received(GET)
    await settle()
    assert b"connection: close" in wire.sent
    service.handler = lambda _: asyncio.Event().wait()  # type: ignore[assignment, return-value]
    hanging_connection = type(connection)(server)
    hanging = type(wire)(hanging_connection)
    hanging_connection.data_received(GET)
    await settle()
    await server.close()
    assert hanging.is_aborted
    assert not server.connections


async def test_server_on_a_socket_answers_and_frees_its_port() -> None:
    from connector.http import HttpServer

    server = HttpServer(Echo(), LIMITS)
    await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(post(b"hello", b"Connection: close\r\n"))
    assert (await reader.read()).endswith(b"POST /b hello")
    writer.close()
    port = server.port
    await server.close()
    with pytest.raises(OSError):  # noqa: PT011
        await asyncio.open_connection("127.0.0.1", port)
