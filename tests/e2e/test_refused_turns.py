"""Turns that D refuses and clients that leave: P's blocks come back well before their lease ends. Real engines.

Field reports 13 (vllm-project/vllm#41269) and 15 (ai-dynamo/dynamo#14507).
"""

import asyncio
import contextlib
import uuid

import httpx

from tests.e2e.stack import Stack, eventually
from tests.e2e.test_changing_histories import SYSTEM

REFUSALS = 50


async def num_active_legs(stack: Stack) -> float:
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{stack.router_url}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("backhaul_router_engine_active_legs{")]
    assert lines
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def until_prefill_is_empty(stack: Stack, within_seconds: float) -> None:
    async def is_empty() -> bool:
        counters = await stack.counters(stack.prefill_url)
        return counters["vllm:kv_cache_usage_perc"] == counters["vllm:num_requests_running"] == 0

    await eventually(is_empty, within_seconds=within_seconds, what="P holds nothing")


async def test_fifty_refusals_of_decode_pin_nothing_at_prefill(stack: Stack) -> None:
    """P is asked for one token and D for at least ten of five. A handoff's own lease would last 30 s."""
    body = {"model": "tiny", "max_tokens": 5, "min_tokens": 10}
    await until_prefill_is_empty(stack, within_seconds=60)
    async with stack.client() as client:
        for number in range(REFUSALS):
            messages = [{"role": "user", "content": f"{number} {uuid.uuid4().hex} {SYSTEM[:300]}"}]
            response = await client.post("/chat/completions", json={**body, "messages": messages})
            assert response.status_code == 400, response.text
            assert "min_tokens" in response.json()["error"]["message"]
    await until_prefill_is_empty(stack, within_seconds=15)
    assert await num_active_legs(stack) == 0


async def test_client_that_leaves_before_the_first_token_stops_prefill(stack: Stack) -> None:
    """A prompt of some 14,000 tokens takes P many seconds; the next client must not wait for them."""
    long = {"model": "tiny", "prompt": [300 + number % 7000 for number in range(14_000)], "max_tokens": 4}
    async with stack.client() as client:
        abandoned = asyncio.create_task(client.post("/completions", json=long))

        async def is_computing() -> bool:
            return (await stack.counters(stack.prefill_url))["vllm:num_requests_running"] > 0

        await eventually(is_computing, within_seconds=20, what="P computes the long prompt")
        abandoned.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await abandoned
        short = await client.post("/completions", json={"model": "tiny", "prompt": "Hello", "max_tokens": 4})
    assert short.status_code == 200
    await until_prefill_is_empty(stack, within_seconds=20)
    assert await num_active_legs(stack) == 0

    async def is_recorded() -> bool:
        turns = (await stack.get("/sessions/"))["results"][:5]
        rows = [row for session in turns for row in await stack.rows(f"/sessions/{session['id']}/turns/")]
        return any(row["status"] == "cancelled" for row in rows)

    await eventually(is_recorded, within_seconds=10, what="the abandoned turn is recorded as cancelled")
