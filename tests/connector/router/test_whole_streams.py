"""A stream as it is on the wire: framed to its clean end, however slowly its client reads.

Field report 39 (vllm-project/production-stack#952, #777): streams closed early, or gathered before they were sent.
"""

import asyncio
import json
import socket
from urllib.parse import urlsplit

import pytest

from tests.connector.router.conftest import API_KEY, MODEL, Scene, user
from tests.connector.router.sse import DONE, chunk, usage_chunk
from tests.connector.router.waiting import eventually

NUM_EVENTS = 200


async def dial(scene: Scene, receive_bytes: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client's connection; ``receive_bytes`` is what the kernel holds for it, about."""
    plug = socket.socket()
    if receive_bytes:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    plug.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plug, ("127.0.0.1", urlsplit(scene.url).port))
    return await asyncio.open_connection(sock=plug, limit=receive_bytes or 2**16)


def request(*, closes: bool) -> bytes:
    body = json.dumps({"model": MODEL, "messages": [user("hi")], "stream": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return (head + ("Connection: close\r\n" if closes else "") + "\r\n").encode() + body


async def read_chunked(reader: asyncio.StreamReader, step: int = 0) -> list[bytes]:
    """The pieces up to the last chunk, which must be there; read ``step`` bytes at a time if given."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding: chunked" in head.lower()
    pieces = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        piece = b""
        while len(piece) < size:
            piece += await reader.read(min(step or size, size - len(piece)))
        pieces.append(piece)
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"
    return pieces


@pytest.mark.parametrize("closes", [False, True], ids=["kept", "closed"])
async def test_stream_ends_clean_and_its_connection_serves_on(scene: Scene, closes: bool) -> None:
    """Two turns over one connection where it is kept: a stream that ended unclean would spoil the second."""
    events = [*(chunk(f"w{number} ") for number in range(NUM_EVENTS)), usage_chunk(7, NUM_EVENTS), DONE]
    scene.decode.events = events
    reader, writer = await dial(scene)
    for _ in range(1 if closes else 2):
        writer.write(request(closes=closes))
        pieces = await read_chunked(reader)
        assert b"".join(pieces) == b"".join(events)
    if closes:
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()


async def test_event_is_read_before_the_engine_makes_the_next(scene: Scene) -> None:
    events = [*(chunk(f"w{number} ") for number in range(NUM_EVENTS)), DONE]
    has_read = asyncio.Semaphore(1)
    scene.decode.events, scene.decode.gate = events, has_read.acquire  # type: ignore[assignment]
    reader, writer = await dial(scene)
    writer.write(request(closes=False))
    await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(60):
        for event in events:
            size = int(await reader.readuntil(b"\r\n"), 16)
            assert await reader.readexactly(size + 2) == event + b"\r\n"
            has_read.release()
        assert await reader.readexactly(5) == b"0\r\n\r\n"
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("step", [1, 100])
async def test_reader_of_few_bytes_at_a_time_gets_it_whole(scene: Scene, step: int) -> None:
    """With a receive buffer of some kilobytes, so that the router itself is held up."""
    events = [*(chunk("x" * 1_000) for _ in range(NUM_EVENTS)), DONE]
    scene.decode.events = events
    reader, writer = await dial(scene, receive_bytes=4096)
    writer.write(request(closes=False))
    assert b"".join(await read_chunked(reader, step)) == b"".join(events)
    await eventually(lambda: scene.metric('turns_total{outcome="ok"}') == 1, "the turn is recorded as served")
    writer.close()
    await writer.wait_closed()
