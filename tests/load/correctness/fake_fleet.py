"""A stand-in for the engines that answers at once: right by construction, or without verifying what it pulls.

Its "KV" is the tokens that it was computed from, and log-probabilities are a function of those, so that wrong KV shows
as it does with a model.
"""

import random
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec

from connector.protocol import (
    Decision,
    LeaseEnded,
    LeaseGranted,
    LeaseKind,
    LeaseOffer,
    LeaseState,
    LegDecided,
    Role,
)
from deploy.local.engines import Engine
from tests.load.correctness.comparison import NUM_TOP, Answer
from tests.load.correctness.engines import Trio
from tests.load.correctness.expectations import Expected, LegFacts, Offered, Tokens, expect
from tests.load.correctness.fleet import LegRequest
from tests.load.correctness.histories import BLOCK_SIZE


class FakeLink:
    """Leases end at once when they are told to."""

    def __init__(self) -> None:
        self.ends: dict[str, LeaseEnded] = {}

    async def release(self, lease_id: str) -> str:
        return self._end(lease_id, LeaseState.RELEASED)

    async def extend(self, lease_id: str, ttl_seconds: float) -> str:
        if ttl_seconds < 1:
            self._end(lease_id, LeaseState.EXPIRED)
        return lease_id if ttl_seconds > 10 else f"late {lease_id}"

    async def ended(self, lease_id: str) -> LeaseEnded:
        return self.ends[lease_id]

    def has_ended(self, lease_id: str) -> bool:
        return lease_id in self.ends

    def _end(self, lease_id: str, state: LeaseState) -> str:
        self.ends[lease_id] = LeaseEnded(lease_id=lease_id, state=state, reason="test")
        return state.value


class FakeFleet:
    """``verifies=False``: it pulls as many blocks as both sides have, whatever is in them."""

    def __init__(self, *, verifies: bool = True) -> None:
        self._verifies = verifies
        self.decode_link = FakeLink()
        self._held: dict[str, Offered] = {}
        self.forgotten: set[str] = set()
        plain, caching, decode = (
            Engine(name=name, role=name.split("-")[0], port=0, nixl_port=0)
            for name in ("prefill-0", "prefill-1", "decode-0")
        )
        self.trio = Trio(plain_prefill=plain, caching_prefill=caching, decode=decode)

    def forget(self, ids: Iterable[str]) -> None:
        self.forgotten.update(ids)

    def prefill_engine(self, *, caches: bool) -> Engine:
        return self.trio.caching_prefill if caches else self.trio.plain_prefill

    async def prefill(self, _engine: Engine, leg: LegRequest) -> tuple[Answer, LegDecided]:
        kv, decided = self._leg(Role.PREFILL, leg)
        self._held[f"handoff {leg.turn_id}"] = Offered(tokens=leg.prompt, adapter=leg.adapter, tenant=leg.tenant)
        reply: dict[str, Any] = {
            "offer": f"handoff {leg.turn_id}",
            "decision": decided.decision.value,
            "num_pulled_tokens": decided.num_pulled_tokens,
        }
        return msgspec.structs.replace(_answer(kv, leg.adapter, 1), backhaul=reply), decided

    async def decode(self, leg: LegRequest) -> tuple[Answer, LegDecided, LeaseOffer]:
        kv, decided = self._leg(Role.DECODE, leg)
        answer = _answer(kv, leg.adapter, leg.num_reply_tokens)
        held = (*leg.prompt, *answer.token_ids[:-1])
        lease_id = uuid.uuid4().hex
        self._held[lease_id] = Offered(tokens=held, adapter=leg.adapter, tenant=leg.tenant)
        granted = LeaseGranted(
            lease_id=lease_id,
            kind=LeaseKind.SESSION,
            session_id=leg.session_id,
            turn_id=leg.turn_id,
            tenant=leg.tenant,
            num_tokens=len(held),
            num_blocks=-(-len(held) // BLOCK_SIZE),
            num_bytes=0,
            remaining_seconds=480,
        )
        return answer, decided, LeaseOffer(lease=granted, offer=lease_id)

    async def recompute(self, prompt: Tokens, adapter: int, num_reply_tokens: int = 1) -> Answer:
        return _answer(prompt, adapter, num_reply_tokens)

    async def plain(self, _engine: Engine, prompt: Tokens, adapter: int, _tenant: str) -> Answer:
        return _answer(prompt, adapter, 1)

    async def fill(self, _engine: Engine, _prompt: Tokens) -> None:
        return

    def _leg(self, role: Role, leg: LegRequest) -> tuple[Tokens, LegDecided]:
        """(tokens that the leg's KV was computed from, what is said of it)."""
        facts = LegFacts(
            role=role,
            prompt=leg.prompt,
            adapter=leg.adapter,
            tenant=leg.tenant,
            threshold_tokens=int(getattr(leg.policy, "kv_recompute_threshold", 0) or 0),
            offered=self._offered(leg.offer),
            num_local_tokens=0,
        )
        expected = expect(facts)
        decision, num_pulled = next(iter(expected.pulled_by_decision.items()))
        kv = leg.prompt
        if not self._verifies and facts.offered is not None and decision is not Decision.EXPIRED:
            num_taken = min(len(leg.prompt), len(facts.offered.tokens)) // BLOCK_SIZE * BLOCK_SIZE
            kv = (*facts.offered.tokens[:num_taken], *leg.prompt[num_taken:])
        return kv, _decided(role, leg, expected, decision, num_pulled)

    def _offered(self, token: str | None) -> Offered | None:
        if token is None:
            return None
        key = token.removeprefix("late ")
        return msgspec.structs.replace(self._held[key], is_gone=key != token or self.decode_link.has_ended(key))


def _decided(role: Role, leg: LegRequest, expected: Expected, decision: Decision, num_pulled: int) -> LegDecided:
    return LegDecided(
        turn_id=leg.turn_id,
        session_id=leg.session_id,
        leg=role,
        decision=decision,
        num_prompt_tokens=len(leg.prompt),
        num_verified_tokens=expected.num_verified_tokens,
        num_pulled_tokens=num_pulled,
    )


def _answer(kv: Tokens, adapter: int, num_tokens: int) -> Answer:
    reply: list[int] = []
    top: list[dict[int, float]] = []
    for _ in range(num_tokens):
        source = random.Random(f"{adapter} {hash((*kv, *reply))}")
        candidates = {source.randrange(300, 7900): -source.random() - rank for rank in range(NUM_TOP)}
        reply.append(max(candidates, key=lambda token: candidates[token]))
        top.append(candidates)
    return Answer(token_ids=tuple(reply), top=tuple(top))
