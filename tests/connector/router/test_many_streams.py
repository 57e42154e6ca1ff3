"""Many streams at a time, and readers that don't read.

Field report 39 (vllm-project/production-stack#952, #777): streams closed early, or gathered before they were sent.
"""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connector.router.endings import Ending
from connector.router.requests.endpoint import Endpoint
from connector.router.streaming import TAIL_BYTES, Observer
from tests.connector.router.conftest import MODEL, Scene, user
from tests.connector.router.sse import DONE, chunk, event, usage_chunk
from tests.connector.router.waiting import eventually

NUM_STREAMS = 500


async def test_five_hundred_parallel_streams_are_all_whole_and_leave_nothing(scene: Scene) -> None:
    """All are open at once: no event but the first leaves the engine until every client has read one."""
    num_started, all_started = 0, asyncio.Event()

    async def gate() -> None:
        if num_started == NUM_STREAMS:
            all_started.set()

    events = [chunk(f"w{number}") for number in range(20)]
    scene.decode.events = [*events, usage_chunk(7, 20), DONE]
    scene.decode.gate = gate
    expected = b"".join(scene.decode.events)

    async def one(number: int) -> None:
        nonlocal num_started
        body = {"model": MODEL, "messages": [user(f"hi {number}")], "stream": True}
        async with scene.post("/v1/chat/completions", body) as response:
            first = await response.content.readany()
            num_started += 1
            if num_started == NUM_STREAMS:
                all_started.set()
            await all_started.wait()
            assert first + await response.content.read() == expected

    async with asyncio.timeout(120):
        await asyncio.gather(*(one(number) for number in range(NUM_STREAMS)))
    await eventually(lambda: scene.live.turns.num_active == 0, "no turn is left")
    assert [engine.num_active for engine in scene.live.fleet] == [0, 0]
    assert scene.metric('turns_total{outcome="ok"}') == NUM_STREAMS


async def test_reader_that_stops_holds_back_its_own_stream_only(scene: Scene) -> None:
    piece, num_sent = chunk("y" * 65_000), 0

    async def count() -> None:
        nonlocal num_sent
        num_sent += 1

    scene.decode.events = [piece] * 400 + [DONE]
    scene.decode.gate = count
    body: dict[str, Any] = {"model": MODEL, "messages": [user("hi")], "stream": True}
    async with scene.post("/v1/chat/completions", body) as stuck:
        await stuck.content.readexactly(10)
        scene.decode.events = [chunk("quick"), DONE]
        for _ in range(5):
            async with scene.post("/v1/chat/completions", {**body, "messages": [user("other")]}) as response:
                assert await response.content.read() == chunk("quick") + DONE
        assert num_sent < 300, "the router swallows what its client doesn't read"
        rest = await stuck.content.read()
    assert 10 + len(rest) == 400 * len(piece) + len(DONE)


EVENTS = st.lists(
    st.one_of(
        st.text(max_size=40).map(chunk),
        st.binary(max_size=40).map(lambda data: b": " + data.replace(b"\n", b"").replace(b"\r", b"") + b"\n\n"),
        st.just(b"\r\n"),
        st.just(event({"choices": []})),
    ),
    max_size=12,
)
PLACES = st.lists(st.integers(0, 5_000), max_size=10)


def observe(stream: bytes, places: list[int], is_events: bool = True) -> Observer:
    observer = Observer(is_events=is_events, keeps_reply=True)
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})
    for start, end in zip(edges, edges[1:], strict=False):  # noqa: RUF007
        observer.see(stream[start:end])
    return observer


@given(EVENTS, st.integers(0, 10**6), st.integers(0, 10**6), PLACES)
def test_usage_and_end_are_found_however_a_stream_is_cut(
    events: list[bytes], num_prompt: int, num_output: int, places: list[int]
) -> None:
    stream = b"".join(events) + usage_chunk(num_prompt, num_output) + DONE
    observer = observe(stream, places)
    ending = Ending(Endpoint.CHAT, observer.tail(), is_events=True)
    assert (ending.num_prompt_tokens, ending.num_output_tokens) == (num_prompt, num_output)
    assert ending.is_complete
    assert observer.whole() == stream
    assert observer.first_event_at
    assert observer.num_bytes == len(stream)
    assert stream.endswith(observer.tail())


@given(st.sampled_from(Endpoint), st.binary(max_size=TAIL_BYTES * 3), PLACES, st.booleans())
def test_observer_takes_any_bytes_and_says_the_same_however_they_are_cut(
    endpoint: Endpoint, stream: bytes, places: list[int], is_events: bool
) -> None:
    cut, whole = observe(stream, places, is_events), observe(stream, [], is_events)
    found = [
        (
            ending.num_prompt_tokens,
            ending.num_output_tokens,
            ending.is_complete,
            ending.has_error,
            observer.tail(),
            bool(observer.first_event_at),
        )
        for observer in (cut, whole)
        for ending in [Ending(endpoint, observer.tail(), is_events)]
    ]
    assert found[0] == found[1]
    assert len(cut.tail()) <= TAIL_BYTES
