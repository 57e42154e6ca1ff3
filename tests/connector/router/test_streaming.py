"""Bytes of a reply: untouched, at once, however they were cut."""

import asyncio
import gzip

import pytest
from aiohttp import web

from connector.router.endings import Ending
from connector.router.requests import Endpoint
from connector.router.streaming import TAIL_BYTES, Observer
from tests.connector.router.conftest import MODEL, Scene, user
from tests.connector.router.fake_engine import Received
from tests.connector.router.sse import DONE, chunk, event, reply_stream, usage_chunk
from tests.connector.router.waiting import eventually


def ending_of(observer: Observer) -> Ending:
    return Ending(Endpoint.CHAT, observer.tail(), observer.is_events)


ODD_STREAM = (
    b": ping\n\n"
    + chunk("Hel")
    + b'data:{"choices": [], "no": "space"}\n\n'
    + b"event: x\r\ndata: {}\r\n\r\n"
    + b": ping\r\n\r\n"
    + chunk("lo \\u00e4")
    + usage_chunk(11, 5)
    + b"data: [DONE]"
)
"""Comments, both line ends, no space, two events in one write, no blank line at the end."""


async def test_stream_cut_at_every_byte_arrives_as_sent(scene: Scene) -> None:
    for position in range(1, len(ODD_STREAM)):
        scene.decode.events = [ODD_STREAM[:position], ODD_STREAM[position:]]
        first_is_read = asyncio.Event()
        pieces = iter((asyncio.sleep(0), first_is_read.wait()))

        async def gate(pieces: object = pieces) -> None:
            await next(pieces)  # type: ignore[call-overload]

        scene.decode.gate = gate
        body = {"model": MODEL, "messages": [user("hi")], "stream": True}
        async with scene.post("/v1/chat/completions", body) as response:
            first = await response.content.readany()
            assert first == ODD_STREAM[:position]
            first_is_read.set()
            assert await response.content.read() == ODD_STREAM[position:]
    await eventually(lambda: len(scene.control.turns) == len(ODD_STREAM) - 1, "all turns are recorded")
    assert {(t.num_prompt_tokens, t.num_output_tokens, t.status) for t in scene.control.turns} == {(11, 5, "ok")}


def test_observer_finds_the_same_for_every_cut() -> None:
    found = set()
    for first in range(len(ODD_STREAM)):
        for second in (first + 1, first + 2, first + 7):
            observer = Observer(is_events=True, keeps_reply=True)
            for piece in (ODD_STREAM[:first], ODD_STREAM[first:second], ODD_STREAM[second:]):
                if piece:
                    observer.see(piece)
            ending = ending_of(observer)
            found.add((ending.num_prompt_tokens, ending.num_output_tokens, ending.is_complete, ending.has_error))
            assert observer.whole() == ODD_STREAM
    assert found == {(11, 5, True, False)}


@pytest.mark.parametrize("size", [1, 100, 8191, 200_000])
def test_observer_is_bounded_and_survives_huge_events(size: int) -> None:
    stream = b"".join((chunk("x" * 200_000), usage_chunk(3, 4), DONE))
    observer = Observer(is_events=True, keeps_reply=False)
    for start in range(0, len(stream), size):
        observer.see(stream[start : start + size])
    ending = ending_of(observer)
    assert (ending.num_prompt_tokens, ending.num_output_tokens) == (3, 4)
    assert len(observer.tail()) <= TAIL_BYTES
    assert observer.num_bytes == len(stream)


def test_first_event_is_no_comment() -> None:
    observer = Observer(is_events=True, keeps_reply=False)
    for piece in (b": pi", b"ng\r", b"\n\r\n:", b" again\n\n"):
        observer.see(piece)
        assert not observer.first_event_at
    observer.see(b"d")
    assert observer.first_event_at


def test_stream_without_an_end_is_not_complete() -> None:
    for stream in (chunk("x"), chunk("x") + DONE[:-3], b""):
        observer = Observer(is_events=True, keeps_reply=False)
        observer.see(stream)
        assert not ending_of(observer).is_complete


def test_error_event_is_seen() -> None:
    observer = Observer(is_events=True, keeps_reply=False)
    observer.see(chunk("x") + event({"error": {"message": "boom", "code": 500}}) + DONE)
    assert ending_of(observer).has_error


def test_usage_in_the_text_of_a_reply_is_not_mistaken() -> None:
    body = b'{"choices":[{"message":{"content":"\\"usage\\":{\\"prompt_tokens\\":1}"}}],"usage":{"prompt_tokens":8,'
    body += b'"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}'
    observer = Observer(is_events=False, keeps_reply=False)
    observer.see(body)
    ending = ending_of(observer)
    assert (ending.num_prompt_tokens, ending.num_output_tokens) == (8, 2)


async def test_events_arrive_one_by_one(scene: Scene) -> None:
    """Each event is released only after the client has read the one before."""
    scene.decode.events = reply_stream([f"w{number}" for number in range(40)])
    release = asyncio.Semaphore(0)
    scene.decode.gate = release.acquire  # type: ignore[assignment]
    body = {"model": MODEL, "messages": [user("hi")], "stream": True}
    release.release()
    async with scene.post("/v1/chat/completions", body) as response:
        for expected in scene.decode.events:
            async with asyncio.timeout(10):
                assert await response.content.readany() == expected
            release.release()
        assert await response.content.read() == b""


async def test_reply_is_held_back_for_a_slow_reader_without_filling_memory(scene: Scene) -> None:
    piece = chunk("y" * 65_000)
    num_sent = 0

    async def flood(request: web.BaseRequest, received: Received) -> web.StreamResponse:
        nonlocal num_sent
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(1_000):
            await response.write(piece)
            num_sent += 1
        await response.write(DONE)
        await response.write_eof()
        return response

    scene.decode.script = flood
    body = {"model": MODEL, "messages": [user("hi")], "stream": True}
    async with scene.post("/v1/chat/completions", body) as response:
        await response.content.readexactly(len(piece))
        before = -1
        while before != num_sent:
            before = num_sent
            await asyncio.sleep(0.2)
        assert num_sent < 400, "the router or the sockets between swallow the whole reply"
        total = len(piece) + len(await response.content.read())
    assert total == 1_000 * len(piece) + len(DONE)


async def test_large_and_compressed_bodies_pass_untouched(scene: Scene) -> None:
    packed = gzip.compress(b'{"choices": [], "usage": {"prompt_tokens": 1}}' + b" " * 300_000)

    async def send_packed(request: web.BaseRequest, received: Received) -> web.Response:
        assert received.headers["Accept-Encoding"] == "gzip"
        headers = {
            "Content-Encoding": "gzip",
            "Content-Type": "application/json",
            "X-Engine": "d",
            "Connection": "X-Hop",
        }
        return web.Response(body=packed, headers={**headers, "X-Hop": "1"})

    scene.decode.script = send_packed
    body = {"model": MODEL, "messages": [user("hi")]}
    async with scene.post("/v1/chat/completions", body, Accept_Encoding="gzip") as response:
        assert await response.content.read() == packed
        assert response.headers["Content-Encoding"] == "gzip"
        assert response.headers["Content-Length"] == str(len(packed))
        assert response.headers["X-Engine"] == "d"
        assert "X-Hop" not in response.headers
    assert scene.prefill.received[0].headers["Accept-Encoding"] == "identity"


async def test_non_stream_usage_is_recorded(scene: Scene) -> None:
    await scene.chat([user("hi")])
    await eventually(lambda: scene.control.turns, "the turn is recorded")
    (turn,) = scene.control.turns
    assert (turn.num_prompt_tokens, turn.num_output_tokens) == (7, 2)


async def test_small_events_arrive_before_the_next_is_sent_and_the_offer_is_captured_whole(scene: Scene) -> None:
    """Field report 5 (llm-d/llm-d-router#2432): capturing params made the stream come in lumps, and captured nothing.

    Forty events of about sixty bytes, each sent only after the one before has reached the client; and P's answer of
    300 KB, whose offer D gets whole.
    """
    offer = "o" * 300_000

    async def large_answer(request: web.BaseRequest, received: Received) -> web.Response:
        backhaul = {"offer": offer, "decision": "pulled", "num_pulled_tokens": 1, "lease_id": "handoff"}
        return web.json_response({"choices": [], "kv_transfer_params": {"backhaul": backhaul}})

    scene.prefill.script = large_answer
    scene.decode.events = [*(event(b'{"n":"%s"}' % (b"%02d" % number * 22)) for number in range(40)), DONE]
    assert {len(piece) for piece in scene.decode.events[:40]} == {60}
    release = asyncio.Semaphore(1)
    scene.decode.gate = release.acquire  # type: ignore[assignment]
    body = {"model": MODEL, "messages": [user("hi")], "stream": True}
    async with scene.post("/v1/chat/completions", body) as response:
        for expected in scene.decode.events:
            async with asyncio.timeout(10):
                assert await response.content.readany() == expected
            release.release()
    assert scene.decode.received[0].offer == offer


async def test_large_plain_body_passes_byte_for_byte(scene: Scene) -> None:
    """Field report 5: a body of 300 KB that isn't streamed."""
    plain = b'{"choices": [ ], "pad": "' + bytes(range(32, 127)).replace(b'"', b"").replace(b"\\", b"") * 3300 + b'"}'

    async def send_plain(request: web.BaseRequest, received: Received) -> web.Response:
        return web.Response(body=plain, content_type="application/json")

    scene.decode.script = send_plain
    async with scene.post("/v1/chat/completions", {"model": MODEL, "messages": [user("hi")]}) as response:
        assert await response.content.read() == plain
        assert response.headers["Content-Length"] == str(len(plain))
