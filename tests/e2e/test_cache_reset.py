"""A cache reset from the control plane says what the engine really did, idle or not. Real engines.

Field report 25 (vllm-project/vllm#41180).
"""

import asyncio
from typing import Any

import pytest

from tests.e2e.routed import REUSING, RoutedClient
from tests.e2e.stack import Stack, eventually
from tests.e2e.test_changing_histories import system


async def reset(stack: Stack, engine: str, **options: Any) -> dict[str, Any]:
    async with stack.rest() as rest:
        response = await rest.post(f"/engines/{engine}/reset-cache/", json=options)
    assert response.status_code == 200, response.text
    operation: dict[str, Any] = response.json()
    return operation


async def test_idle_decode_engine_is_reset_and_its_offers_are_forgotten(stack: Stack) -> None:
    client = RoutedClient(stack, [system()])
    await client.say("Open the book.")
    first = await reset(stack, "decode-0")
    assert (first["outcome"], first["state"]) == ("reset", "done")
    assert first["detail"] != "0 leases released"

    async def is_empty() -> bool:
        return (await stack.counters(stack.decode_url))["vllm:kv_cache_usage_perc"] == 0

    await eventually(is_empty, within_seconds=10, what="D holds nothing")
    again = await reset(stack, "decode-0")
    assert (again["outcome"], again["detail"]) == ("reset", "0 leases released"), "an idle core is woken for it"
    await client.say("Go on.")
    await client.say("And on.")
    _, after, later = await client.turns()
    assert after["prefill_decision"] == "recomputed_no_placement"
    assert later["prefill_decision"] in REUSING
    rows = await stack.rows("/placements/", session=after["session"])
    assert "cache_reset" in {row["end_reason"] for row in rows}


@pytest.mark.parametrize("engine", ["prefill-0", "decode-0"])
async def test_busy_engine_answers_what_still_holds_blocks(stack: Stack, engine: str) -> None:
    """And is reset as soon as nothing does: the asker's patience decides which of the two it is told."""
    url = stack.prefill_url if engine == "prefill-0" else stack.decode_url
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 4000, "ignore_eos": True}
    async with stack.engine(url) as http:
        busy = asyncio.create_task(http.post("/v1/completions", json=body))

        async def is_running() -> bool:
            return (await stack.counters(url))["vllm:num_requests_running"] > 0

        await eventually(is_running, within_seconds=10, what="the request runs")
        refused = await reset(stack, engine, deadline_seconds=6)
        assert (refused["outcome"], refused["state"]) == ("failed", "failed")
        assert "by 1 unfinished requests" in refused["detail"]
        assert not busy.done()
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
    done = await reset(stack, engine, deadline_seconds=20)
    assert done["outcome"] == "reset"
