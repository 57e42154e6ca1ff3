"""Turns that end badly hold nothing at P and nothing in the router's counts, however many there are."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from connector.protocol import EngineState, Role
from tests.connector.router.conftest import MODEL, Scene, user
from tests.connector.router.fake_engine import Received, error_response
from tests.connector.router.sse import DONE
from tests.connector.router.waiting import eventually

TURNS = 50


def body_of(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [user(text)], **fields}


@pytest.mark.parametrize("status", [400, 404])
@pytest.mark.parametrize("is_stream", [True, False])
async def test_fifty_turns_that_decode_refuses_leave_nothing(scene: Scene, status: int, is_stream: bool) -> None:
    """Field report 13 (vllm-project/vllm#41269): D rejects before admission, and P's blocks stay pinned for minutes."""

    async def refuse(request: web.BaseRequest, received: Received) -> web.Response:
        return error_response(status, "max_tokens is too large for this model")

    scene.decode.script = refuse
    for number in range(TURNS):
        async with scene.post("/v1/chat/completions", body_of(f"turn {number}", stream=is_stream)) as response:
            assert response.status == status
            assert (await response.json())["error"]["message"] == "max_tokens is too large for this model"
    await eventually(lambda: len(scene.prefill.feed.releases) == TURNS, "P is told of every turn")
    asked = {f"handoff-{received.headers['X-Request-Id']}" for received in scene.prefill.received}
    assert {release.key for release in scene.prefill.feed.releases} == asked
    assert [engine.num_active for engine in scene.live.fleet] == [0, 0]
    assert scene.metric("active_turns") == 0
    assert len(scene.decode.received) == TURNS, "a refusal is never retried"


async def test_client_that_leaves_before_the_first_token_ends_prefill_and_delays_nobody(scene: Scene) -> None:
    """Field report 15 (ai-dynamo/dynamo#14507): a short request waited 54 s behind an abandoned one."""
    num_closed = 0
    slots = asyncio.Semaphore(1)

    async def one_at_a_time(request: web.BaseRequest, received: Received) -> web.StreamResponse | None:
        nonlocal num_closed
        async with slots:
            if "long" not in received.raw.decode():
                return None
            try:
                await asyncio.sleep(20)
            finally:
                num_closed += 1
        return None

    scene.prefill.script = one_at_a_time
    abandoned = asyncio.create_task(scene.post("/v1/chat/completions", body_of("long", stream=True)).__aenter__())
    await eventually(lambda: scene.prefill.received, "P is asked")
    abandoned.cancel()
    async with scene.post("/v1/chat/completions", body_of("short", stream=True)) as response:
        assert (await response.content.read()).endswith(DONE)
    assert num_closed == 1, "P would still be computing for nobody"
    await eventually(lambda: len(scene.control.turns) == 2, "both turns are recorded")
    assert sorted(turn.status for turn in scene.control.turns) == ["cancelled", "ok"]
    spans = await eventually(
        lambda: [span for span in scene.control.spans if span.name == "turn"][1:] and scene.control.spans,
        "both turns have spans",
    )
    outcomes = {
        value.value.string_value for span in spans for value in span.attributes if value.key == "backhaul.outcome"
    }
    assert outcomes == {"cancelled", "ok"}
    assert [span.end_time_unix_nano > 0 for span in spans] == [True] * len(spans)


async def test_retry_after_of_a_busy_decode_engine_reaches_the_client_and_frees_prefill(scene: Scene) -> None:
    """Field report 17 (sgl-project/sglang#29482). Other broken decode legs: test_failures.py."""

    async def busy(request: web.BaseRequest, received: Received) -> web.Response:
        return error_response(503, "overloaded", {"Retry-After": "1"})

    scene.decode.script = busy
    async with scene.post("/v1/chat/completions", body_of("hi", stream=True)) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert len(scene.decode.received) == 1
    turn_id = scene.decode.received[0].headers["X-Request-Id"]
    await eventually(lambda: scene.prefill.feed.releases, "P's hold is released within the second")
    assert [release.key for release in scene.prefill.feed.releases] == [f"handoff-{turn_id}"]


@pytest.mark.parametrize("fault", ["down", "reset", "503"])
async def test_second_decode_engine_gets_the_same_offer_once(scene: Scene, fault: str) -> None:
    """Field report 17: two Ds, the first broken. P's hold isn't released under the one that reads it."""
    spare = await scene.add_engine("d1", Role.DECODE)
    await scene.publish()

    async def fail(request: web.BaseRequest, received: Received) -> web.StreamResponse:
        if fault == "503":
            return error_response(503, "overloaded", {"Retry-After": "1"})
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    scene.decode.script = fail
    if fault == "down":
        await scene.decode.stop_serving()
    scene.live.fleet.get("d1").picked_at = 1 << 60  # type: ignore[union-attr]
    async with scene.post("/v1/chat/completions", body_of("hi", stream=True)) as response:
        assert response.status == 200
        assert (await response.content.read()).endswith(DONE)
    (second,) = spare.received
    assert second.offer == f"p-offer-{second.headers['X-Request-Id']}"
    assert len(scene.prefill.received) == 1
    await eventually(lambda: scene.control.turns, "the turn is recorded")
    assert scene.prefill.feed.releases == []


@pytest.mark.parametrize("told_by", ["feed", "control plane"])
async def test_restarted_decode_engine_poisons_no_turn(scene: Scene, told_by: str) -> None:
    """Field report 19 (vllm-project/vllm#49238, #50047): another engine id at the same address, within 5 seconds."""
    await scene.chat([user("one")], conversation_id="c")
    await scene.until_leased(1)
    if told_by == "feed":
        await scene.decode.feed.change(EngineState.DOWN, "d0-1")
        await scene.decode.feed.change(EngineState.READY, "d0-2")
    else:
        await scene.decode.feed.stop()
        scene.decode.feed.incarnation = "d0-2"
        scene.decode.feed.leases.clear()
        await scene.publish()
    await scene.until_leased(0)
    await scene.chat([user("one"), user("two")], conversation_id="c")
    second = scene.prefill.received[-1]
    assert second.offer is None
    assert second.envelope is not None
    assert second.envelope.reason_without_offer == "recomputed_source_lost"
    if told_by == "control plane":
        await scene.decode.feed.start()
        await scene.until_connected()
    await scene.until_leased(1)
    await scene.chat([user("one"), user("two"), user("three")], conversation_id="c")
    third = scene.prefill.received[-1]
    assert third.offer == f"d-offer-{second.headers['X-Request-Id']}"
