"""Paths, keys, limits, health, metrics, draining."""

import asyncio
import json

import pytest
from aiohttp import web

from connector.protocol import EngineState
from tests.connector.router.conftest import API_KEY, MODEL, OTHER_KEY, Scene, user
from tests.connector.router.fake_engine import Received
from tests.connector.router.waiting import eventually

CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [user("hi")]}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/v1/unheard-of", 404),
        ("POST", "/v2/responses", 404),
        ("GET", "/v1/chat/completions/", 404),
        ("GET", CHAT, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/healthz", 405),
    ],
)
async def test_unknown_path_or_method_is_told_in_the_apis_shape(
    scene: Scene, method: str, path: str, status: int
) -> None:
    async with scene.client.request(method, scene.url + path) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] in ("unknown_url", "method_not_allowed")


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Basic {API_KEY}", "Bearer " + "x" * 5000]
)
async def test_missing_or_wrong_key_is_a_401(scene: Scene, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    for method, path in (("POST", CHAT), ("GET", "/v1/models")):
        async with scene.client.request(method, scene.url + path, json=BODY, headers=headers) as response:
            assert response.status == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
            assert (await response.json())["error"]["code"] == "invalid_api_key"
    assert scene.prefill.received == []


async def test_revoked_key_ends_with_the_next_snapshot(scene: Scene) -> None:
    await scene.chat([user("hi")], OTHER_KEY)
    del scene.api_keys[OTHER_KEY]
    await scene.publish()
    async with scene.post(CHAT, BODY, OTHER_KEY) as response:
        assert response.status == 401
    async with scene.post(CHAT, BODY) as response:
        assert response.status == 200


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_oversize_body_is_a_413(scene: Scene, is_chunked: bool) -> None:
    big = json.dumps({**BODY, "user": "x" * 300_000}).encode()

    async def pieces() -> object:
        for start in range(0, len(big), 10_000):
            yield big[start : start + 10_000]

    headers = {"Authorization": f"Bearer {API_KEY}"}
    data = pieces() if is_chunked else big
    async with scene.client.post(scene.url + CHAT, data=data, headers=headers) as response:  # type: ignore[arg-type]
        assert response.status == 413
        assert (await response.json())["error"]["code"] == "request_too_large"


async def test_body_of_more_than_a_megabyte_is_served(still_scene: Scene) -> None:
    scene = still_scene
    await scene.start_router(max_body_bytes=8 * 1024 * 1024)
    text = "word " * 600_000
    await scene.chat([user(text)])
    assert scene.decode.received[0].body["messages"][0]["content"] == text


async def test_client_that_asks_to_continue_is_told_to(scene: Scene) -> None:
    data = json.dumps(BODY).encode()
    headers = {"Authorization": f"Bearer {API_KEY}", "Expect": "100-continue"}
    async with scene.client.post(scene.url + CHAT, data=data, headers=headers, expect100=True) as response:
        assert response.status == 200
    assert "Expect" not in scene.decode.received[0].headers


async def test_models_are_the_union_of_live_engines(still_scene: Scene) -> None:
    scene = still_scene
    scene.decode.models = [MODEL, "adapter"]
    await scene.start_router()
    headers = {"Authorization": f"Bearer {API_KEY}"}

    async def listed() -> list[str]:
        async with scene.client.get(f"{scene.url}/v1/models", headers=headers) as response:
            assert response.status == 200
            body = await response.json()
        assert body["object"] == "list"
        return sorted(card["id"] for card in body["data"])

    assert await listed() == ["adapter", MODEL]
    await scene.decode.feed.change(EngineState.DOWN, "d0-1")
    await eventually(lambda: not scene.live.fleet.get("d0").is_up, "the engine is seen down")  # type: ignore[union-attr]
    assert await listed() == [MODEL]


async def test_health_tells_and_readiness_judges(scene: Scene) -> None:
    async with scene.client.get(f"{scene.url}/readyz") as response:
        assert response.status == 200
        assert await response.json() == {
            "ready": True,
            "prefill_engines": 1,
            "decode_engines": 1,
            "engines_ejected": [],
            "pairs_quarantined": [],
            "feeds_connected": 2,
            "control_connected": True,
            "policy_revision": 1,
        }
    scene.draining.add("d0")
    await scene.publish()
    async with scene.client.get(f"{scene.url}/readyz") as response:
        assert response.status == 503
    async with scene.client.get(f"{scene.url}/healthz") as response:
        assert response.status == 200


async def test_metrics_keep_their_series_whatever_clients_send(scene: Scene) -> None:
    async def series() -> set[str]:
        async with scene.client.get(f"{scene.url}/metrics") as response:
            assert response.content_type == "text/plain"
            return {line.rpartition(" ")[0] for line in (await response.text()).splitlines()}

    async def stir(round_number: int) -> None:
        for number in range(20):
            name = f"{round_number}-{number}"
            await scene.chat([user(name)], conversation_id=name)
            async with scene.post(CHAT, {**BODY, "model": f"m{name}"}, X_Session_ID=name) as response:
                assert response.status == 404
            async with scene.client.get(f"{scene.url}/no/{name}") as response:
                assert response.status == 404

    await stir(0)
    await series()
    before = await series()
    await stir(1)
    assert await series() == before
    assert any('requests_total{path="other",status="404"}' in name for name in before)


async def test_drain_lets_turns_end_and_takes_no_new_ones(scene: Scene) -> None:
    go_on = asyncio.Event()
    scene.decode.gate = go_on.wait  # type: ignore[assignment]
    body = {**BODY, "stream": True}
    running = asyncio.create_task(scene.post(CHAT, body).__aenter__())
    await eventually(lambda: scene.decode.received, "the turn is at D")
    idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", int(scene.url.rpartition(":")[2]))
    assert scene.router is not None
    stopping = asyncio.create_task(scene.router.stop())
    await eventually(lambda: scene.live.turns.num_active == 1, "the turn still runs")
    await asyncio.sleep(0.05)
    idle_writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    assert b" 503 " in await idle_reader.readline()
    idle_writer.close()
    go_on.set()
    response = await running
    assert (await response.content.read()) == b"".join(scene.decode.events)
    await stopping
    scene.router = None
    await eventually(lambda: len(scene.control.turns) == 1, "the turn is recorded before the end")


async def test_drain_ends_hanging_turns_when_its_time_is_up(still_scene: Scene) -> None:
    scene = still_scene

    async def hang(request: web.BaseRequest, received: Received) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    scene.decode.script = hang
    await scene.start_router(drain_seconds=0.1)
    running = asyncio.create_task(scene.post(CHAT, BODY).__aenter__())
    await eventually(lambda: scene.decode.received, "the turn is at D")
    await scene.stop_router()
    with pytest.raises(Exception):  # noqa: B017, PT011
        await running
    await eventually(lambda: scene.decode.num_aborted == 1, "the leg is cancelled")
    assert [release.key for release in scene.decode.feed.releases] == [scene.decode.received[0].headers["X-Request-Id"]]


async def test_access_log_has_one_json_line_a_request(scene: Scene) -> None:
    await scene.chat([user("hi")], conversation_id="c")
    async with scene.client.get(f"{scene.url}/nothing") as response:
        assert response.status == 404
    turn, unknown = scene.access_lines()
    assert turn["status"] == 200
    assert (turn["prefill_engine"], turn["decode_engine"], turn["outcome"]) == ("p0", "d0", "ok")
    assert turn["decision"] == "recomputed_no_placement"
    assert unknown == {"time": unknown["time"], "path": "other", "status": 404, "method": "GET", "error": "unknown_url"}
