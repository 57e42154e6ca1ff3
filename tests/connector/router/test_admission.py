"""Limits on what is in flight: who is refused, how it is told, and that nothing stays counted."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import pytest
from aiohttp import web

from connector.http import Request
from connector.http.connection import Connection
from connector.protocol import Role
from connector.router.admission import Admission
from connector.router.errors import ApiError
from connector.router.metrics import Metrics
from tests.connector.router.conftest import API_KEY, MODEL, OTHER_KEY, Scene, user
from tests.connector.router.fake_engine import FakeEngine, Received, error_response
from tests.connector.router.waiting import eventually

CHAT = "/v1/chat/completions"
NUM_FAILURES = 120


def body_of(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [user(text)], "stream": True, **fields}


@contextlib.asynccontextmanager
async def held(scene: Scene, *engines: FakeEngine, key: str = API_KEY) -> AsyncIterator[asyncio.Event]:
    """One turn in flight until the event is set; it must succeed."""
    go_on = asyncio.Event()
    for engine in engines:
        engine.gate = cast(Any, go_on.wait)
    before = sum(len(engine.received) for engine in engines)

    async def turn() -> None:
        async with scene.post(CHAT, body_of("held"), key) as response:
            assert response.status == 200
            await response.read()

    task = asyncio.create_task(turn())
    await eventually(lambda: sum(len(engine.received) for engine in engines) > before, "the turn is at its engine")
    try:
        yield go_on
    finally:
        go_on.set()
        await task


async def until_left(scene: Scene) -> None:
    await eventually(lambda: scene.live.admission.num_active == 0, "nothing is in flight")


async def test_one_turn_too_many_is_told_to_come_back(still_scene: Scene) -> None:
    await still_scene.start_router(max_turns=1)
    async with held(still_scene, still_scene.decode):
        async with still_scene.post(CHAT, body_of()) as response:
            assert response.status == 429
            assert 1 <= int(response.headers["Retry-After"]) <= 60
            error = (await response.json())["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "process_busy")
        async with still_scene.post("/v1/messages", body_of(max_tokens=4)) as response:
            assert response.status == 429
            told = await response.json()
            assert (told["type"], told["error"]["type"]) == ("error", "rate_limit_error")
        async with still_scene.client.get(f"{still_scene.url}/readyz") as response:
            assert response.status == 200
    assert still_scene.metric('admission_refusals_total{reason="process"}') == 2
    refused = [line for line in still_scene.access_lines() if line["status"] == 429]
    assert [(line["path"], line["error"]) for line in refused] == [
        (CHAT, "process_busy"),
        ("/v1/messages", "process_busy"),
    ]
    await until_left(still_scene)
    await still_scene.chat([user("again")])


async def test_refusal_does_not_wait_for_the_body(still_scene: Scene) -> None:
    await still_scene.start_router(max_turns=1)
    async with held(still_scene, still_scene.decode):
        assert still_scene.router is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", still_scene.router.port)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\nContent-Length: 9\r\n"
        writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 429 ")
        writer.close()


async def test_full_tenant_leaves_room_for_another(still_scene: Scene) -> None:
    await still_scene.start_router(max_tenant_turns=1)
    async with held(still_scene, still_scene.decode) as go_on:
        async with still_scene.post(CHAT, body_of()) as response:
            assert response.status == 429
            assert (await response.json())["error"]["code"] == "tenant_busy"
        other = asyncio.create_task(still_scene.chat([user("hi")], OTHER_KEY, stream=True))
        await eventually(lambda: len(still_scene.decode.received) == 2, "the other tenant's turn is at its engine")
        go_on.set()
        await other
    assert still_scene.metric('admission_refusals_total{reason="tenant"}') == 1


async def test_unknown_key_is_not_told_how_busy_the_router_is(still_scene: Scene) -> None:
    await still_scene.start_router(max_turns=1)
    async with held(still_scene, still_scene.decode), still_scene.post(CHAT, body_of(), "bh_api_wrong") as response:
        assert response.status == 401


async def test_full_decode_engines_refuse_before_prefill_is_asked(still_scene: Scene) -> None:
    await still_scene.start_router(max_engine_legs=1)
    async with held(still_scene, still_scene.decode), still_scene.post(CHAT, body_of()) as response:
        assert response.status == 429
        assert (await response.json())["error"]["code"] == "decode_busy"
    assert len(still_scene.prefill.received) == 1
    assert still_scene.metric('admission_refusals_total{reason="decode"}') == 1
    await still_scene.chat([user("again")])


async def test_full_prefill_engine_is_not_passed_over_for_decode(still_scene: Scene) -> None:
    await still_scene.start_router(max_engine_legs=1)
    await still_scene.add_engine("d1", Role.DECODE)
    await still_scene.publish()
    go_on = asyncio.Event()

    async def wait(request: web.BaseRequest, received: Received) -> None:
        await go_on.wait()

    still_scene.prefill.script = wait
    first = asyncio.create_task(still_scene.chat([user("first")]))
    await eventually(lambda: still_scene.prefill.received, "prefill works")
    async with still_scene.post(CHAT, body_of()) as response:
        assert response.status == 429
        assert (await response.json())["error"]["code"] == "prefill_busy"
    async with still_scene.post(CHAT, body_of(n=2, stream=False)) as response:
        assert response.status == 200
    go_on.set()
    await first


async def test_conversation_goes_to_another_engine_while_its_own_is_full(still_scene: Scene) -> None:
    spare = FakeEngine("d1", Role.DECODE, still_scene.fleet_key)
    await still_scene.start_router(max_engine_legs=1)
    history = [user("a long story")]
    await still_scene.chat(history)
    await still_scene.until_leased(1)
    await spare.start()
    still_scene.engines.append(spare)
    await still_scene.publish()
    for engine in still_scene.live.fleet:
        if engine.name == "d0":
            engine.begin_leg()
    await still_scene.chat([*history, {"role": "assistant", "content": "Hello you"}, user("go on")])
    assert len(spare.received) == 1


async def test_failures_of_every_kind_leave_nothing_counted(still_scene: Scene) -> None:
    await still_scene.start_router(max_turns=NUM_FAILURES, max_tenant_turns=NUM_FAILURES)
    never = asyncio.Event()

    async def misbehave(request: web.BaseRequest, received: Received) -> web.StreamResponse:
        match len(received.raw) % 3:
            case 0:
                return error_response(500, "broken")
            case 1:
                assert request.transport is not None
                request.transport.abort()
            case 2:
                await never.wait()
        return web.Response()

    still_scene.prefill.script = still_scene.decode.script = misbehave
    bodies = [b"{nonsense", b"{}", b'{"model":"none","messages":[]}']

    async def one(number: int) -> None:
        body = bodies[number % 3] if number % 2 else body_of("x" * number, n=2 if number % 4 else 1)
        path = "/tokenize" if number % 5 == 0 else CHAT
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):  # the client leaves, or is cut off
            async with asyncio.timeout(0.3), still_scene.post(path, body) as response:
                await response.read()

    await asyncio.gather(*(one(number) for number in range(NUM_FAILURES)))
    await until_left(still_scene)
    assert still_scene.live.admission.num_tenants == 0
    assert still_scene.live.turns.num_active == 0
    assert all(engine.num_active == 0 for engine in still_scene.live.fleet)


async def test_token_count_in_flight_is_answered_before_the_router_stops(scene: Scene) -> None:
    go_on = asyncio.Event()

    async def wait(request: web.BaseRequest, received: Received) -> None:
        await go_on.wait()

    scene.prefill.script = scene.decode.script = wait

    async def count() -> int:
        async with scene.post("/tokenize", {"model": MODEL, "prompt": "hi"}) as response:
            await response.read()
            return response.status

    counting = asyncio.create_task(count())
    await eventually(lambda: scene.prefill.received or scene.decode.received, "an engine counts")
    stopping = asyncio.create_task(scene.stop_router())
    await eventually(lambda: scene.router and scene.router._doors.is_draining, "the router drains")
    go_on.set()
    assert await counting == 200
    await stopping


def leaving(seconds: float, is_answered: bool) -> Request:
    http = Request(cast(Connection, None))
    http.principal, http.arrived, http.is_answered = "t", time.monotonic() - seconds, is_answered
    return http


@pytest.mark.parametrize(("seconds", "least", "most"), [(0.001, 1, 1), (7.5, 8, 9), (500, 60, 60)])
def test_wait_is_as_long_as_turns_lately_took_within_bounds(seconds: float, least: int, most: int) -> None:
    admission = Admission(1, 0, Metrics())
    for _ in range(100):
        admission.enter("t")
        admission.leave(leaving(seconds, is_answered=True))
        admission.enter("t")
        admission.leave(leaving(0, is_answered=False))
    admission.enter("t")
    with pytest.raises(ApiError) as caught:
        admission.check("t")
    assert caught.value.retry_after is not None
    assert least <= caught.value.retry_after <= most


def test_no_limit_is_none() -> None:
    admission = Admission(0, 0, Metrics())
    for _ in range(10_000):
        admission.enter("t")
    admission.check("t")
