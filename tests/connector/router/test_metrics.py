"""What operators see of a router: handoffs that didn't help, load, and the process itself."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from connector.router import ownuse
from connector.router.endings import Ending
from connector.router.exposition import Histogram
from connector.router.metrics import LATENCY_BUCKETS
from connector.router.requests import Endpoint
from tests.connector.router.conftest import MODEL, Scene, user
from tests.connector.router.fake_engine import Received
from tests.connector.router.waiting import eventually

CHAT = "/v1/chat/completions"


def usage_of(num_prompt: int, **members: Any) -> dict[str, Any]:
    return {"prompt_tokens": num_prompt, "completion_tokens": 2, **members}


def cached(count: int | None) -> dict[str, Any]:
    return {"prompt_tokens_details": {"cached_tokens": count}}


async def turn_with(scene: Scene, usage: dict[str, Any], **fields: Any) -> None:
    async def told(_: web.BaseRequest, __: Received) -> web.Response:
        return web.json_response({"choices": [], "usage": usage})

    scene.decode.script = told
    await scene.chat([user("hi")], **fields)


async def test_decode_that_computes_what_prefill_had_computed_is_seen(scene: Scene) -> None:
    """Field report 37: answers are right, P works, and D computes everything again."""
    await turn_with(scene, usage_of(1000, **cached(999)))
    await turn_with(scene, usage_of(1000, **cached(0)))
    assert scene.metric('decode_prompt_tokens_total{origin="held"}') == 999
    assert scene.metric('decode_prompt_tokens_total{origin="computed"}') == 1001
    assert scene.metric("prefill_unused_total") == 1
    assert [line["decode_computed_tokens"] for line in scene.access_lines()] == [1, 1000]


async def test_turns_that_tell_nothing_of_a_handoff_are_not_counted(scene: Scene) -> None:
    """Without the engine's word, without prefill, and prompts of less than a few blocks."""
    await turn_with(scene, usage_of(1000))
    await turn_with(scene, usage_of(1000, **cached(None)))
    await turn_with(scene, usage_of(1000, **cached(0)), n=2)
    assert scene.metric('decode_prompt_tokens_total{origin="computed"}') == 0
    await turn_with(scene, usage_of(40, **cached(0)))
    assert scene.metric('decode_prompt_tokens_total{origin="computed"}') == 40
    assert scene.metric("prefill_unused_total") == 0


@pytest.mark.parametrize(
    ("endpoint", "usage", "expected"),
    [
        (Endpoint.CHAT, b'{"prompt_tokens":9,"completion_tokens":1}', None),
        (Endpoint.CHAT, b'{"prompt_tokens":9,"prompt_tokens_details":null}', None),
        (Endpoint.CHAT, b'{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":-1}}', None),
        (Endpoint.CHAT, b'{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":8}}', 8),
        (Endpoint.COMPLETIONS, b'{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}', 0),
        (Endpoint.RESPONSES, b'{"input_tokens":9,"input_tokens_details":{"cached_tokens":7}}', 7),
        (Endpoint.MESSAGES, b'{"input_tokens":2,"cache_read_input_tokens":7,"output_tokens":1}', 7),
        (Endpoint.MESSAGES, b'{"input_tokens":9,"output_tokens":1}', None),
    ],
)
def test_every_api_tells_what_decode_had(endpoint: Endpoint, usage: bytes, expected: int | None) -> None:
    ending = Ending(endpoint, b'{"choices":[],"usage":' + usage + b"}", is_events=False)
    assert ending.num_cached_tokens == expected
    assert ending.num_prompt_tokens == 9


async def test_load_of_the_moment_and_the_process_are_told(scene: Scene) -> None:
    go_on = asyncio.Event()

    async def wait(_: web.BaseRequest, __: Received) -> None:
        await go_on.wait()

    async def told() -> str:
        async with scene.client.get(f"{scene.url}/metrics") as response:
            return await response.text()

    scene.decode.script = wait
    turn = asyncio.create_task(scene.chat([user("hi")]))
    await eventually(lambda: scene.decode.received, "decode works")
    text = await told()
    for line in (
        "backhaul_router_requests_in_flight 1",
        "backhaul_router_client_connections 2",
        'backhaul_router_engine_active_legs{engine="d0",role="decode"} 1',
    ):
        assert line in text.splitlines()
    names = {line.split()[0] for line in text.splitlines() if line.startswith("process_")}
    assert names == {
        "process_cpu_seconds_total",
        "process_start_time_seconds",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_max_fds",
    }
    go_on.set()
    await turn
    await eventually(lambda: scene.live.admission.num_active == 0, "nothing is in flight")
    assert "backhaul_router_requests_in_flight 0" in (await told()).splitlines()


async def test_late_loop_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownuse, "LOOK_SECONDS", 0.001)
    lag = Histogram("lag", "Lag.", LATENCY_BUCKETS)
    watching = asyncio.create_task(ownuse.watch_loop(lag))
    await eventually(lambda: lag.count >= 3, "it was looked at")
    watching.cancel()


async def test_no_series_has_a_label_that_clients_choose(scene: Scene) -> None:
    """Whatever is asked for: names of paths, methods, models and tenants stay out."""
    for number in range(3):
        async with scene.client.delete(f"{scene.url}/odd-{number}") as response:
            assert response.status == 404
        async with scene.post(CHAT, {"model": f"odd-{number}", "messages": [user("hi")]}) as response:
            assert response.status == 404
        async with scene.post(CHAT, {"model": MODEL, "messages": "odd"}, key=f"odd-{number}") as response:
            assert response.status == 401
    text = scene.live.metrics.render().decode()
    assert "odd-" not in text
    entries = scene.access_lines()
    assert len(entries) == 9
    assert all(entry["path"] in ("other", CHAT) for entry in entries)
