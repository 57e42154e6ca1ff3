"""Policy reaches the engines at once, is proved by read-back, and a silent engine is called silent. Real engines."""

import os
import signal
import time

import pytest

from tests.e2e.legs import Feed, Legs, random_tokens
from tests.e2e.stack import Stack, eventually

BLOCK = 32


async def test_threshold_is_obeyed_by_the_very_next_request(stack: Stack) -> None:
    legs = Legs(stack)
    async with Feed(stack) as feed:
        prompt = random_tokens(320)
        _, answer, lease = await legs.turn(prompt, None, feed)
        tokens = prompt + answer.token_ids + random_tokens(40)
        decisions = []
        for threshold in (64, 100_000, 64):
            await stack.publish_and_wait(kv_recompute_threshold=threshold)
            decisions.append((await legs.prefill(tokens, lease.offer)).reply["decision"])
        assert decisions == ["pulled", "recomputed_below_threshold", "pulled"]


@pytest.mark.parametrize("threshold", [32, 64, 96])
async def test_threshold_counts_verified_whole_block_tokens(stack: Stack, threshold: int) -> None:
    legs = Legs(stack)
    await stack.publish_and_wait(kv_recompute_threshold=threshold)
    async with Feed(stack) as feed:
        prompt = random_tokens(320)
        _, _, lease = await legs.turn(prompt, None, feed)
        for num_common in (32, 64, 96):
            answer = await legs.prefill(prompt[:num_common] + random_tokens(40), lease.offer)
            expected = num_common if num_common >= threshold else 0
            assert answer.reply["num_pulled_tokens"] == expected, (threshold, num_common)


async def test_short_ttl_empties_decode_engine_and_rest(stack: Stack) -> None:
    legs = Legs(stack)
    async with Feed(stack) as feed:
        prompt = random_tokens(704)
        _, _, lease = await legs.turn(prompt, None, feed)
        lease_id = lease.lease.lease_id

        async def in_state(state: str) -> bool:
            return bool((await stack.get(f"/placements/{lease_id}/"))["state"] == state)

        await eventually(lambda: in_state("held"), within_seconds=5, what="placement is held in REST")
        started = time.monotonic()
        await stack.publish_and_wait(decoder_kv_blocks_ttl=10)
        ended = await feed.wait_ended(lease_id)
        assert (ended.state, ended.reason) == ("expired", "ttl")
        await eventually(lambda: in_state("expired"), within_seconds=20, what="placement is expired in REST")

        async def is_empty() -> bool:
            usage = (await stack.counters(stack.decode_url))["vllm:kv_cache_usage_perc"]
            load = (await stack.get("/engines/decode-0/"))["load"]
            return bool(usage == 0 and load["num_leased_blocks"] == 0)

        await eventually(is_empty, within_seconds=20, what="no block is held on D")
        assert time.monotonic() - started < 20


async def test_stopped_engine_core_does_not_ack(stack: Stack) -> None:
    core = stack.engine_core_pid("prefill-0")
    os.kill(core, signal.SIGSTOP)
    try:
        number = await stack.publish(kv_recompute_threshold=96)

        async def is_drift_shown() -> bool:
            acks = await stack.acks(number)
            states = (acks["prefill-0"]["state"], acks["decode-0"]["state"])
            return states == ("unacknowledged", "acked")

        await eventually(is_drift_shown, within_seconds=5, what="drift of the stopped engine is shown")
    finally:
        os.kill(core, signal.SIGCONT)

    async def has_acked() -> bool:
        ack = (await stack.acks(number))["prefill-0"]
        return bool(ack["state"] == "acked" and ack["values"]["kv_recompute_threshold"] == 96)

    await eventually(has_acked, within_seconds=10, what="the engine acks once it runs again")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"kv_recompute_threshold": -1}, "kv_recompute_threshold"),
        ({"decoder_kv_blocks_ttl": 5}, "decoder_kv_blocks_ttl"),
        ({"pinned_kv_limit": 1.5}, "pinned_kv_limit"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
)
async def test_bad_policy_is_refused_by_name(stack: Stack, values: dict[str, float], field: str) -> None:
    async with stack.rest() as rest:
        response = await rest.post("/policies/", json={"scope": "fleet", "values": values, "reason": "test"})
    assert response.status_code == 400
    assert response.headers["content-type"].startswith("application/problem+json")
    assert field in response.text
