"""Leases as an operator sees them on the real stack: held, extended, pinned, released and expired per session, with the
decode engine's own gauge of free blocks following; limits, branches, and a session's own policy.

Pressure is in ``test_tight_pair.py``, on a pair whose memory a few prompts fill.
"""

import asyncio
import uuid
from typing import Any

import pytest

from connector.protocol import PolicyPatch
from tests.e2e.legs import Answer, Feed, Legs, random_tokens
from tests.e2e.stack import Stack, eventually

BLOCK = 32
TURN = 8 * BLOCK - 2
"""Tokens of a turn: with the reply's first two, of which KV exists, it holds eight blocks."""


async def num_used_blocks(stack: Stack) -> int:
    """By vLLM's own gauge; its null block is not counted."""
    usage = (await stack.counters(stack.decode_url))["vllm:kv_cache_usage_perc"]
    engine = await stack.get("/engines/decode-0/")
    return round(usage * (int(engine["load"]["num_blocks"]) - 1))


async def all_agree_on(stack: Stack, num_blocks: int) -> None:
    """vLLM's gauge, REST and, through it, the feed's load, on distinct leased blocks of an idle engine."""

    async def agree() -> bool:
        load = (await stack.get("/engines/decode-0/"))["load"]
        used = await num_used_blocks(stack)
        is_free = load["num_blocks"] - 1 - load["num_free_blocks"] == num_blocks
        return bool(used == load["num_leased_blocks"] == num_blocks and is_free)

    await eventually(agree, within_seconds=20, what=f"gauge, REST and feed agree on {num_blocks} leased blocks")


@pytest.fixture(autouse=True)
async def empty_decode_engine(stack: Stack, default_policy: None) -> None:
    """Leases of other tests are released, through REST as an operator would."""
    async with stack.rest() as rest:
        for row in await stack.rows("/placements/", state="held"):
            await rest.post(f"/placements/{row['id']}/release/", json={})
    await all_agree_on(stack, 0)


async def ask(stack: Stack, lease_id: str, action: str, **body: Any) -> None:
    async with stack.rest() as rest:
        response = await rest.post(f"/placements/{lease_id}/{action}/", json=body)
    assert response.status_code in (200, 202), response.text


async def expired_reads(stack: Stack) -> float:
    found = [await stack.counters(url) for url in (stack.prefill_url, stack.decode_url)]
    return sum(counters.get("vllm:nixl_num_kv_expired_reqs_total", 0.0) for counters in found)


async def test_a_lease_is_held_extended_pinned_and_released_and_the_gauge_follows(stack: Stack) -> None:
    legs = Legs(stack)
    before = await expired_reads(stack)
    async with Feed(stack) as feed:
        _, _, first = await legs.turn(random_tokens(TURN), None, feed)
        await all_agree_on(stack, 8)
        _, _, second = await legs.turn(random_tokens(TURN), None, feed)
        await all_agree_on(stack, 16)
        await ask(stack, first.lease.lease_id, "extend", ttl_seconds=900)
        await ask(stack, second.lease.lease_id, "pin")
        await stack.publish_and_wait(decoder_kv_blocks_ttl=0)
        ended = await feed.wait_ended(first.lease.lease_id)
        assert (ended.state, ended.reason) == ("released", "policy")
        await all_agree_on(stack, 8)
        await ask(stack, second.lease.lease_id, "release")
        ended = await feed.wait_ended(second.lease.lease_id)
        assert ended.state == "released"
        await all_agree_on(stack, 0)
    assert await expired_reads(stack) == before, "a release is no expiry"


async def test_a_stale_offer_is_declined_and_the_extended_ones_is_pulled(stack: Stack) -> None:
    legs = Legs(stack)
    await stack.publish_and_wait(decoder_kv_blocks_ttl=12)
    async with Feed(stack) as feed:
        prompt = random_tokens(TURN)
        _, answer, lease = await legs.turn(prompt, None, feed)
        stale = lease.offer
        await ask(stack, lease.lease.lease_id, "extend", ttl_seconds=300)
        fresh = await feed.renewed_offer(lease.lease.lease_id, stale)
        tokens = [*prompt, *answer.token_ids, *random_tokens(20)]

        async def is_declined() -> Answer | None:
            answer = await legs.prefill(tokens, stale)
            return answer if answer.reply["decision"] == "recomputed_expired" else None

        late = await eventually(is_declined, within_seconds=30, what="the stale offer is in its last five seconds")
        assert late is not None
        timely = await legs.prefill(tokens, fresh)
        assert timely.reply["decision"] == "pulled"
        truth = await legs.recompute(stack.prefill_url, tokens)
        late.assert_same_as(truth)
        timely.assert_same_as(truth)


async def test_branches_of_one_lease_are_all_read_and_share_its_blocks(stack: Stack) -> None:
    legs = Legs(stack)
    session = uuid.uuid4().hex
    async with Feed(stack) as feed:
        trunk = random_tokens(8 * BLOCK)
        _, _, lease = await legs.turn(trunk, None, feed, session_id=session)
        prompts = [[*trunk[: 6 * BLOCK], *random_tokens(40)] for _ in range(3)]
        answers = await asyncio.gather(*(legs.prefill(prompt, lease.offer, session_id=session) for prompt in prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert (answer.reply["decision"], answer.reply["num_pulled_tokens"]) == (
                "trimmed_prefix_diverged",
                6 * BLOCK,
            )
            answer.assert_same_as(await legs.recompute(stack.prefill_url, prompt))
        leases = []
        for prompt in prompts:
            _, _, held = await legs.turn(prompt, None, feed, session_id=session)
            leases.append(held)
        assert lease.lease.lease_id in feed.leases
        # D keeps its prefix cache: the branches hold the trunk's first six blocks too, and two of their own each.
        await all_agree_on(stack, 9 + 3 * 2)
        await ask(stack, lease.lease.lease_id, "release")
        await feed.wait_ended(lease.lease.lease_id)
        await all_agree_on(stack, 6 + 3 * 2)


async def test_a_longer_turn_supersedes_its_own_prefix_only(stack: Stack) -> None:
    legs = Legs(stack)
    session = uuid.uuid4().hex
    async with Feed(stack) as feed:
        prompt = random_tokens(TURN)
        _, answer, first = await legs.turn(prompt, None, feed, session_id=session)
        other = await legs.turn([*prompt[: 4 * BLOCK], *random_tokens(40)], None, feed, session_id=session)
        await legs.turn([*prompt, *answer.token_ids, *random_tokens(20)], first.offer, feed, session_id=session)
        ended = await feed.wait_ended(first.lease.lease_id)
        assert (ended.state, ended.reason) == ("superseded", "superseded")
        assert other[2].lease.lease_id in feed.leases


async def test_the_limit_holds_over_several_sessions(stack: Stack) -> None:
    legs = Legs(stack)
    num_blocks = (await stack.get("/engines/decode-0/"))["num_blocks"]
    share = 20.5 / num_blocks
    await stack.publish_and_wait(pinned_kv_limit=share)
    async with Feed(stack) as feed:
        held = [(await legs.turn(random_tokens(TURN), None, feed))[2] for _ in range(5)]
        for lease in held[:3]:
            ended = await feed.wait_ended(lease.lease.lease_id)
            assert (ended.state, ended.reason) == ("released", "pinned_kv_limit")
        await all_agree_on(stack, 16)


async def test_a_sessions_own_policy_outlives_the_engines(stack: Stack) -> None:
    """Reuse that a session has switched on for itself, and a read that frees its lease alone."""
    legs = Legs(stack)
    async with Feed(stack) as feed:
        own = PolicyPatch(bidirectional_kv_xfer=True)
        kept = await lease_with(legs, feed, own)
        plain = await lease_with(legs, feed, None)
        once = await lease_with(legs, feed, PolicyPatch(bidirectional_kv_xfer=True, release_on_read=True))
        await all_agree_on(stack, 24)
        await stack.publish_and_wait(bidirectional_kv_xfer=False)
        ended = await feed.wait_ended(plain[1].lease.lease_id)
        assert (ended.state, ended.reason) == ("released", "policy")
        for tokens, lease in (kept, once):
            answer = await legs.prefill([*tokens, *random_tokens(20)], lease.offer, policy=own)
            assert answer.reply["decision"] == "pulled"
        ended = await feed.wait_ended(once[1].lease.lease_id)
        assert (ended.state, ended.reason, ended.num_reads) == ("released", "read", 1)
        await all_agree_on(stack, 8)
        assert kept[1].lease.lease_id in feed.leases


async def lease_with(legs: Legs, feed: Feed, policy: PolicyPatch | None) -> tuple[list[int], Any]:
    """A turn's tokens and its lease, under that policy of its session."""
    tokens, turn_id = random_tokens(TURN), str(uuid.uuid4())
    answer = await legs.decode(tokens, None, 3, turn_id=turn_id, policy=policy)
    assert answer.status == 200
    return [*tokens, *answer.token_ids], await feed.lease_of_turn(turn_id)


async def test_release_on_read_takes_leases_that_were_read_before(stack: Stack) -> None:
    legs = Legs(stack)
    async with Feed(stack) as feed:
        read = await lease_with(legs, feed, None)
        unread = await lease_with(legs, feed, None)
        answer = await legs.prefill([*read[0], *random_tokens(20)], read[1].offer)
        assert answer.reply["decision"] == "pulled"
        await all_agree_on(stack, 16)
        await stack.publish_and_wait(release_on_read=True)
        ended = await feed.wait_ended(read[1].lease.lease_id)
        assert (ended.state, ended.reason) == ("released", "read")
        await all_agree_on(stack, 8)
        assert unread[1].lease.lease_id in feed.leases
