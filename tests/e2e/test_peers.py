"""Whose offers are read: known engines of a like build, and no process that is gone. Real engines."""

import uuid
from typing import Any

import msgspec
import pytest

from connector.engine.kv_layout import KvLayout
from connector.engine.offers import PURPOSE, KvOffer
from tests.e2e.legs import Answer, Feed, Legs, random_tokens
from tests.e2e.stack import Stack, eventually
from tests.e2e.test_conversations import SYSTEM, client_of, say, turns_of
from tests.e2e.test_failures import REUSING, until_healthy

HISTORY = 700
BOUND_SECONDS = 15.0
"""The deadline of the pull (5 s) and the recompute after it, on a busy machine."""


class Held:
    """A turn that D holds, and the next prompt of its history."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.legs = Legs(stack)
        self.tokens: list[int] = []
        self.truth: Answer
        self.offer = ""

    async def take(self, feed: Feed) -> "Held":
        prompt = random_tokens(HISTORY)
        _, answer, lease = await self.legs.turn(prompt, None, feed)
        self.tokens = prompt + answer.token_ids + random_tokens(40)
        self.offer = lease.offer
        self.truth = await self.legs.recompute(self.stack.prefill_url, self.tokens)
        return self

    def changed(self, **facts: Any) -> str:
        """The offer as another engine of the fleet would sign it."""
        key = self.stack.fleet_key
        offer = key.verify(PURPOSE, self.offer, KvOffer)
        return key.sign(PURPOSE, msgspec.structs.replace(offer, **facts))

    async def ask(self, offer: str) -> str:
        """P's decision; its answer is right, and in bounded time, whatever it decides."""
        answer = await self.legs.prefill(self.tokens, offer)
        answer.assert_same_as(self.truth)
        assert answer.seconds < BOUND_SECONDS
        return str(answer.reply["decision"])


async def refusals(stack: Stack) -> dict[str, int]:
    load = (await stack.get("/engines/prefill-0/"))["load"] or {}
    counted: dict[str, int] = load.get("refused_offers", {})
    return counted


async def test_each_offer_that_cannot_be_used_has_its_reason(stack: Stack) -> None:
    before = await refusals(stack)
    async with Feed(stack) as feed:
        held = await Held(stack).take(feed)
        assert await held.ask(held.changed(engine="ghost")) == "recomputed_rejected"
        assert await held.ask(held.changed(digest_key_id="k0")) == "recomputed_rejected"
        assert await held.ask(held.changed(format=1)) == "recomputed_unsupported"
        assert await held.ask(held.changed(block_size=64)) == "recomputed_unsupported"
        assert await held.ask(held.changed(model_fingerprint=b"x" * 16)) == "recomputed_unsupported"
        other = KvLayout("another build", "", 0)
        assert await held.ask(held.changed(layout=other)) == "recomputed_unsupported"
        assert await held.ask(held.offer) == "pulled"

    reasons = ("unknown_engine", "unknown_digest_key", "other_format", "other_block_size", "other_model", "other_build")

    async def are_counted() -> bool:
        now = await refusals(stack)
        return all(now.get(reason, 0) > before.get(reason, 0) for reason in reasons)

    await eventually(are_counted, within_seconds=10, what="every reason is counted")


async def test_a_process_that_the_list_does_not_know_yet_is_tried_and_fails_alone(stack: Stack) -> None:
    """The list may lag behind a restart, so the handshake has the last word on a listed engine's incarnation."""
    async with Feed(stack) as feed:
        held = await Held(stack).take(feed)
        assert await held.ask(held.changed(incarnation=uuid.uuid4().hex)) == "recomputed_transfer_failed"
        assert await held.ask(held.offer) == "pulled"


@pytest.mark.timeout(300)
async def test_a_decode_engine_that_restarts_poisons_nobody(stack: Stack) -> None:
    """Its address stays, its engine id is new: offers of the old process are refused, those of the new one are read."""
    messages = [{"role": "system", "content": SYSTEM + uuid.uuid4().hex}]
    survivors = {program: stack.pid(program) for program in ("prefill-0", "router", "agent-prefill-0")}
    cores = stack.engine_core_pid("prefill-0")
    async with client_of(stack) as client:
        await say(client, messages, "Before.")
        async with Feed(stack) as feed:
            held = await Held(stack).take(feed)
            assert await held.ask(held.offer) == "pulled"
        old = (await stack.get("/engines/decode-0/"))["incarnation"]
        stack.kill("decode-0")
        assert await held.ask(held.offer) in ("recomputed_transfer_failed", "recomputed_timeout")
        await until_healthy(f"{stack.decode_url}/health", 150)

        async def is_replaced() -> bool:
            engine = await stack.get("/engines/decode-0/")
            return bool(engine["state"] == "ready" and engine["incarnation"] != old)

        await eventually(is_replaced, within_seconds=30, what="the new process is known")

        async def is_refused() -> bool:
            return await held.ask(held.offer) == "recomputed_source_lost"

        await eventually(is_refused, within_seconds=60, what="P has heard that the old process is gone")
        for text in ("After.", "And again.", "And again."):
            await say(client, messages, text)
        assert await held.ask(held.offer) == "recomputed_source_lost"
        await say(client, messages, "Last.")
    async with Feed(stack) as feed:
        anew = await Held(stack).take(feed)
        assert await anew.ask(anew.offer) == "pulled"
    turns = await turns_of(stack, 5)
    assert [turn["prefill_decision"] in REUSING for turn in turns[2:]] == [True, True, True]
    assert {program: stack.pid(program) for program in survivors} == survivors
    assert stack.engine_core_pid("prefill-0") == cores


@pytest.mark.timeout(300)
async def test_a_restarted_engine_obeys_the_last_policy_in_its_first_request(stack: Stack) -> None:
    """Control plane down, agent killed, engine killed: what comes back goes by what the agent has on disk."""
    revision = await stack.publish_and_wait(kv_recompute_threshold=900)
    async with Feed(stack) as feed:
        held = await Held(stack).take(feed)
        stack.stop("controlplane")
        try:
            stack.kill("agent-prefill-0")
            stack.kill("prefill-0")
            await until_healthy(f"{stack.prefill_url}/health", 150)
            assert await held.ask(held.offer) == "recomputed_below_threshold"
            assert await held.ask(held.changed(engine="ghost")) == "recomputed_rejected"
        finally:
            stack.start("controlplane")
            await until_healthy(f"{stack.controlplane_url}/readyz", 60)

    async def is_acked() -> bool:
        ack = (await stack.acks(revision)).get("prefill-0", {})
        return bool(ack.get("state") == "acked" and (await stack.get("/engines/prefill-0/"))["state"] == "ready")

    await eventually(is_acked, within_seconds=60, what="the restarted engine's values are acked")
