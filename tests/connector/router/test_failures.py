"""Engines that refuse, fail, vanish or break off; clients that leave."""

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from connector.protocol import Decision, LeaseKind, Role
from tests.connector.router.conftest import MODEL, Scene, user
from tests.connector.router.fake_engine import Received, error_response, lease_offer
from tests.connector.router.sse import DONE, chunk
from tests.connector.router.waiting import eventually

STATUSES = (400, 401, 404, 422, 429, 500, 503)


def body_of(is_stream: bool) -> dict[str, Any]:
    return {"model": MODEL, "messages": [user("hi")], "stream": is_stream}


def refusing(status: int) -> Any:
    async def refuse(request: web.BaseRequest, received: Received) -> web.Response:
        return error_response(status, f"engine says {status}", {"Retry-After": "7", "X-Engine": "yes"})

    return refuse


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("status", STATUSES)
async def test_error_of_decode_passes_with_status_body_and_headers(scene: Scene, status: int, is_stream: bool) -> None:
    scene.decode.script = refusing(status)
    async with scene.post("/v1/chat/completions", body_of(is_stream)) as response:
        assert response.status == status
        assert (await response.json())["error"]["message"] == f"engine says {status}"
        assert response.headers["Retry-After"] == "7"
        assert response.headers["X-Engine"] == "yes"
        assert response.content_type == "application/json"
    assert len(scene.decode.received) == len(scene.prefill.received) == 1
    turn_id = scene.decode.received[0].headers["X-Request-Id"]
    await eventually(lambda: scene.prefill.feed.releases, "P's hold is released")
    assert scene.prefill.feed.releases[0].key == f"handoff-{turn_id}"


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
async def test_refusal_of_prefill_is_the_answer(scene: Scene, status: int, is_stream: bool) -> None:
    scene.prefill.script = refusing(status)
    async with scene.post("/v1/chat/completions", body_of(is_stream)) as response:
        assert response.status == status
        assert (await response.json())["error"]["message"] == f"engine says {status}"
        assert response.headers["Retry-After"] == "7"
    assert len(scene.prefill.received) == 1
    assert scene.decode.received == []


@pytest.mark.parametrize("fault", [500, 503, "reset", "garbage", "down"])
async def test_failing_prefill_costs_only_the_reuse(scene: Scene, fault: object) -> None:
    async def fail(request: web.BaseRequest, received: Received) -> web.Response:
        if fault == "reset":
            assert request.transport is not None
            request.transport.abort()
        return web.Response(body=b"{nonsense")

    scene.prefill.script = refusing(fault) if isinstance(fault, int) else fail
    if fault == "down":
        await scene.prefill.stop_serving()
    async with scene.post("/v1/chat/completions", body_of(is_stream=True)) as response:
        assert response.status == 200
        await response.read()
    (decode,) = scene.decode.received
    assert decode.offer is None
    assert decode.envelope is not None
    assert decode.envelope.reason_without_offer is Decision.SOURCE_LOST
    assert scene.metric('decode_alone_total{reason="prefill_failed"}') == 1


async def test_decode_that_cannot_be_reached_gives_503_in_the_apis_shape(scene: Scene) -> None:
    await scene.decode.stop_serving()
    async with scene.post("/v1/chat/completions", body_of(is_stream=True)) as response:
        assert response.status == 503
        error = (await response.json())["error"]
        assert error["type"] == "server_error"
        assert response.headers["Retry-After"] == "1"
    await eventually(lambda: scene.prefill.feed.releases, "P's hold is released")
    assert scene.decode.feed.releases == []


@pytest.mark.parametrize("fault", ["down", "reset", "headers", 502, 503])
async def test_decode_is_tried_once_more_elsewhere_before_the_first_byte(scene: Scene, fault: object) -> None:
    spare = await scene.add_engine("d1", Role.DECODE)
    await scene.publish()

    async def fail(request: web.BaseRequest, received: Received) -> web.StreamResponse:
        assert request.transport is not None
        if fault == "headers":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
        request.transport.abort()
        return web.Response()

    scene.decode.script = refusing(fault) if isinstance(fault, int) else fail
    if fault == "down":
        await scene.decode.stop_serving()
    scene.live.fleet.get("d1").picked_at = 1 << 60  # type: ignore[union-attr]
    async with scene.post("/v1/chat/completions", body_of(is_stream=True)) as response:
        assert response.status == 200
        assert (await response.content.read()).endswith(DONE)
    (second,) = spare.received
    assert second.offer == f"p-offer-{second.headers['X-Request-Id']}"
    assert len(scene.prefill.received) == 1
    assert len(scene.decode.received) == (0 if fault == "down" else 1)
    assert [engine.num_active for engine in scene.live.fleet] == [0, 0, 0]


async def test_second_failure_is_the_answer(scene: Scene) -> None:
    spare = await scene.add_engine("d1", Role.DECODE)
    await scene.publish()
    scene.decode.script = refusing(503)
    spare.script = refusing(503)
    async with scene.post("/v1/chat/completions", body_of(is_stream=False)) as response:
        assert response.status == 503
        assert (await response.json())["error"]["message"] == "engine says 503"
        assert response.headers["Retry-After"] == "7"
    assert len(scene.decode.received) + len(spare.received) == 2


async def break_off(request: web.BaseRequest, received: Received) -> web.StreamResponse:
    """An engine whose connection ends within its reply."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(chunk("Hel"))
    assert request.transport is not None
    request.transport.close()
    return response


async def test_reply_that_breaks_off_breaks_the_clients_too_and_is_not_retried(scene: Scene) -> None:
    spare = await scene.add_engine("d1", Role.DECODE)
    await scene.publish()

    scene.decode.script = spare.script = break_off
    async with scene.post("/v1/chat/completions", body_of(is_stream=True)) as response:
        assert response.status == 200
        assert await response.content.readany() == chunk("Hel")
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()
    assert len(scene.decode.received) + len(spare.received) == 1
    await eventually(lambda: scene.control.turns, "the turn is recorded")
    assert scene.control.turns[0].status == "error"


async def hang(request: web.BaseRequest, received: Received) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


@pytest.mark.parametrize("stage", ["prefill", "decode", "reply"])
async def test_client_that_leaves_cancels_both_legs_and_frees_what_they_held(scene: Scene, stage: str) -> None:
    engine = scene.prefill if stage == "prefill" else scene.decode
    if stage == "reply":
        scene.decode.gate = asyncio.Semaphore(1).acquire  # type: ignore[assignment]
    else:
        engine.script = hang
    request = asyncio.create_task(scene.post("/v1/chat/completions", body_of(is_stream=True)).__aenter__())
    if stage == "reply":
        response = await request
        await response.content.readany()
        response.close()
    else:
        await eventually(lambda: engine.received, "the engine is asked")
        request.cancel()
    async with asyncio.timeout(10):
        await eventually(lambda: engine.num_aborted == 1, "the leg is cancelled")
        await eventually(lambda: scene.prefill.feed.releases, "P's hold is released")
    turn_id = scene.prefill.received[0].headers["X-Request-Id"]
    if stage == "prefill":
        assert [release.key for release in scene.prefill.feed.releases] == [turn_id]
        assert scene.decode.feed.releases == []
    else:
        assert [release.key for release in scene.prefill.feed.releases] == [f"handoff-{turn_id}"]
        await eventually(lambda: scene.decode.feed.releases, "D is asked to release")
        assert [release.key for release in scene.decode.feed.releases] == [turn_id]
    await eventually(lambda: scene.control.turns, "the turn is recorded")
    assert scene.control.turns[0].status == "cancelled"
    assert [e.num_active for e in scene.live.fleet] == [0, 0]


async def test_lease_that_is_granted_to_a_cancelled_turn_is_released(scene: Scene) -> None:
    scene.prefill.script = hang
    request = asyncio.create_task(scene.post("/v1/chat/completions", body_of(is_stream=True)).__aenter__())
    await eventually(lambda: scene.prefill.received, "P is asked")
    request.cancel()
    await eventually(lambda: scene.prefill.feed.releases, "P is asked to release")
    envelope = scene.prefill.received[0].envelope
    assert envelope is not None
    await scene.prefill.feed.grant(lease_offer(envelope, kind=LeaseKind.HANDOFF))
    await eventually(lambda: not scene.prefill.feed.leases, "the late lease is released")
    assert scene.prefill.feed.releases[-1].key == f"lease-{envelope.turn_id}"


async def test_many_releases_are_not_opened_at_once(scene: Scene) -> None:
    """An agent cuts off a router that has more than 64 releases open."""
    scene.prefill.feed.is_answering = False
    for number in range(100):
        assert scene.live.feeds.release("p0", f"key-{number}", "test")
    feed = scene.prefill.feed
    for answered in range(100):
        await eventually(lambda known=answered: len(feed.releases) > known, "another release arrives")  # type: ignore[misc]
        await feed.answer(feed.releases[answered])
    assert 2 <= feed.most_open_releases <= 32
    assert feed.num_connections == 1


async def test_no_decode_engine_is_a_503(scene: Scene) -> None:
    scene.draining.add("d0")
    await scene.publish()
    async with scene.post("/v1/chat/completions", body_of(is_stream=False)) as response:
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "no_engine_available"
    assert scene.prefill.received == []


async def test_gauges_return_to_zero_after_200_mixed_rounds(scene: Scene) -> None:
    scripts = [None, refusing(500), refusing(429), None, refusing(503)]

    async def one(number: int) -> None:
        scene.prefill.script = scripts[number % 5]
        scene.decode.script = scripts[number // 5 % 5]
        try:
            async with asyncio.timeout(0.02 if number % 7 == 0 else 5):
                async with scene.post("/v1/chat/completions", body_of(is_stream=number % 2 == 0)) as response:
                    await response.read()
        except TimeoutError:
            assert number % 7 == 0

    for start in range(0, 200, 10):
        await asyncio.gather(*(one(number) for number in range(start, start + 10)))
    await eventually(lambda: scene.live.turns.num_active == 0, "no turn is left")
    assert [engine.num_active for engine in scene.live.fleet] == [0, 0]
    assert scene.metric("active_turns") == 0
    total = sum(scene.metric(f'turns_total{{outcome="{o}"}}') for o in ("ok", "error", "cancelled"))
    assert 160 <= total <= 200


@pytest.mark.parametrize("stage", ["prefill", "decode", "reply"])
async def test_silent_engine_is_given_up(still_scene: Scene, stage: str) -> None:
    scene = still_scene
    await scene.start_router(engine_timeout_seconds=0.3)
    if stage == "reply":
        scene.decode.gate = asyncio.Semaphore(1).acquire  # type: ignore[assignment]
    else:
        (scene.prefill if stage == "prefill" else scene.decode).script = hang
    async with scene.post("/v1/chat/completions", body_of(is_stream=True)) as response:
        if stage == "decode":
            assert response.status == 504
            assert (await response.json())["error"]["code"] == "engine_timeout"
        elif stage == "prefill":
            assert (await response.content.read()).endswith(DONE)
        else:
            assert await response.content.readany() == scene.decode.events[0]
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.content.read()
    engine = scene.prefill if stage == "prefill" else scene.decode
    await eventually(lambda: engine.num_aborted == 1, "the engine's request is closed")
