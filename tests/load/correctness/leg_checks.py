"""Checks one leg: the same answer as a full recompute, and exactly the reuse that its tokens allow."""

from typing import Any

import msgspec

from connector.protocol import Decision, LeaseOffer, LegDecided
from tests.load.correctness.comparison import TOLERANCE, Answer, largest_difference
from tests.load.correctness.expectations import CacheBounds, LegFacts, expect
from tests.load.correctness.histories import BLOCK_SIZE
from tests.load.correctness.tally import Tally


class MismatchError(Exception):
    """Something that must not be. ``detail`` holds lengths, decisions and differences, no token ids."""

    def __init__(self, what: str, **detail: Any) -> None:
        super().__init__(f"{what}: {msgspec.json.encode(detail).decode()}")
        self.what = what
        self.detail = detail


class LegChecks:
    """Of one history: ``where`` says which turn and leg a complaint is about."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.bounds = CacheBounds()

    def check_answer(self, where: str, answer: Answer, truth: Answer, num_tokens: int) -> None:
        if len(answer.top) != num_tokens or len(answer.token_ids) != num_tokens:
            raise MismatchError("answer has another length", where=where, got=len(answer.top), wanted=num_tokens)
        difference = largest_difference(answer, truth)
        self._tally.note_difference(difference)
        if difference > TOLERANCE:
            raise MismatchError("wrong log-probabilities", where=where, difference=round(difference, 5))

    def check_decision(self, where: str, facts: LegFacts, decided: LegDecided, largest_hit: int) -> None:
        self._tally.num_legs += 1
        self._tally.decisions[facts.role.value][decided.decision.value] += 1
        self._tally.num_reused_tokens[facts.role.value] += decided.num_pulled_tokens + decided.num_local_tokens
        local = decided.num_local_tokens
        expected = expect(facts)
        seen = (decided.num_verified_tokens, decided.num_pulled_tokens)
        wanted = (expected.num_verified_tokens, expected.pulled_by_decision.get(decided.decision))
        is_right = (
            decided.num_prompt_tokens == len(facts.prompt)
            and local % BLOCK_SIZE == 0
            and local <= largest_hit
            and seen == wanted
        )
        if not is_right:
            raise MismatchError(
                "wrong decision or reuse",
                where=where,
                decided=msgspec.to_builtins(decided),
                expected=msgspec.to_builtins(expected),
                prompt=len(facts.prompt),
                offered=len(facts.offered.tokens) if facts.offered else 0,
                largest_local_hit=largest_hit,
            )

    def check_reply(self, where: str, answer: Answer, decided: LegDecided) -> None:
        """What P told the router is what its connector told the agent."""
        told = (answer.backhaul.get("decision"), answer.backhaul.get("num_pulled_tokens"))
        if told != (decided.decision.value, decided.num_pulled_tokens):
            raise MismatchError("reply and event differ", where=where, told=told, decided=decided.decision)

    def check_lease(self, where: str, lease: LeaseOffer, num_tokens: int, tenant: str) -> None:
        got = (lease.lease.num_tokens, lease.lease.num_blocks, lease.lease.tenant == tenant)
        if got != (num_tokens, -(-num_tokens // BLOCK_SIZE), True):
            raise MismatchError("lease covers something else", where=where, got=got, num_tokens=num_tokens)


def is_unexplained_expiry(facts: LegFacts, decided: LegDecided) -> bool:
    """The engine says that the lease ended, which only the source can confirm."""
    offered = facts.offered
    return decided.decision is Decision.EXPIRED and offered is not None and not offered.is_gone
