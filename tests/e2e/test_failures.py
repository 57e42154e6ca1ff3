"""Every single process dies once; conversations go on and the record converges. Real engines and processes."""

import uuid

import httpx
import pytest

from tests.e2e.stack import Stack, eventually
from tests.e2e.test_conversations import SYSTEM, client_of, say, turns_of

REUSING = ("pulled", "trimmed_prefix_diverged")


def conversation() -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM + uuid.uuid4().hex}]


async def until_healthy(url: str, within_seconds: float) -> None:
    async def is_healthy() -> bool:
        try:
            async with httpx.AsyncClient() as client:
                return (await client.get(url)).status_code == 200
        except httpx.TransportError:
            return False

    await eventually(is_healthy, within_seconds=within_seconds, what=f"{url} answers")


async def has_router(stack: Stack) -> bool:
    """Whether a router follows the feed of D's agent again; before, it can't know of a new lease."""
    url = stack.decode_feed_url.replace("ws://", "http://").replace("/feed", "/healthz")
    try:
        async with httpx.AsyncClient() as client:
            return bool((await client.get(url)).json()["num_routers"])
    except httpx.TransportError:
        return False


async def test_turns_go_on_without_the_control_plane_and_nothing_is_lost(stack: Stack) -> None:
    messages = conversation()
    async with client_of(stack) as client:
        await say(client, messages, "Before.")
        stack.kill("controlplane")
        stack.stop("controlplane")
        for number in range(3):
            await say(client, messages, f"While it is away {number}.")
    stack.start("controlplane")
    await until_healthy(f"{stack.controlplane_url}/readyz", 30)
    turns = await turns_of(stack, 4)
    assert [turn["prefill_decision"] in REUSING for turn in turns] == [False, True, True, True]
    for turn in turns[1:]:
        rows = await stack.rows("/transfers/", turn=turn["id"])
        assert sorted(row["direction"] for row in rows) == ["D->P", "P->D"]


async def test_reuse_is_back_within_one_turn_after_the_router_died(stack: Stack) -> None:
    messages = conversation()
    async with client_of(stack) as client:
        await say(client, messages, "Before.")
        await say(client, messages, "Still before.")
    stack.kill("router")
    await until_healthy(f"{stack.router_url}/healthz", 30)
    async with client_of(stack) as client:
        await say(client, messages, "After.")
        await say(client, messages, "Later.")
    turns = await turns_of(stack, 4)
    assert turns[3]["prefill_decision"] in REUSING, [turn["prefill_decision"] for turn in turns]


async def test_restarted_agent_serves_the_leases_that_the_engine_still_holds(stack: Stack) -> None:
    messages = conversation()
    async with client_of(stack) as client:
        await say(client, messages, "Before.")
        pid = stack.kill("agent-decode-0")

        async def is_back() -> bool:
            states = [row for row in await stack.rows("/agents/") if row["engine"] == "decode-0" and row["connected"]]
            return bool(states) and stack.pid("agent-decode-0") != pid and await has_router(stack)

        await eventually(is_back, within_seconds=20, what="a new agent is connected")
        await say(client, messages, "After.")
        await say(client, messages, "Later.")
    turns = await turns_of(stack, 3)
    assert turns[2]["prefill_decision"] in REUSING, [turn["prefill_decision"] for turn in turns]


@pytest.mark.timeout(240)
async def test_dead_decode_engine_loses_its_placements_and_comes_back(stack: Stack) -> None:
    messages = conversation()
    async with client_of(stack) as client:
        await say(client, messages, "Before.")
    (turn,) = await turns_of(stack, 1)

    async def placements() -> list[str]:
        return [row["state"] for row in await stack.rows("/placements/", session=turn["session"])]

    async def is_held() -> bool:
        return await placements() == ["held"]

    await eventually(is_held, within_seconds=10, what="the placement is held")
    stack.kill("decode-0")
    body = {"model": "tiny", "messages": [*messages, {"role": "user", "content": "Anyone?"}], "max_tokens": 4}
    async with stack.client() as http:
        response = await http.post("/chat/completions", json=body)
    assert response.status_code in (502, 503), response.text
    assert response.json()["error"]["message"]

    async def is_lost() -> bool:
        return await placements() == ["lost"]

    await eventually(is_lost, within_seconds=20, what="the placement is lost")
    await until_healthy(f"{stack.decode_url}/health", 120)

    async def is_ready() -> bool:
        return bool((await stack.get("/engines/decode-0/"))["state"] == "ready")

    await eventually(is_ready, within_seconds=30, what="the engine is ready again")
    async with client_of(stack) as client:
        for text in ("Back.", "Again."):
            await say(client, messages, text)
    turns = sorted(await stack.rows(f"/sessions/{turn['session']}/turns/"), key=lambda row: row["index"])
    assert turns[-1]["prefill_decision"] in REUSING, [row["prefill_decision"] for row in turns]
