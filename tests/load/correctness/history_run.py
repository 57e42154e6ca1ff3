"""Plays one history on the engines and checks every leg of it."""

import asyncio
import random
import uuid

import msgspec

from connector.protocol import LeaseState, PolicyPatch, Role
from deploy.local.engines import Engine
from tests.load.correctness.comparison import Answer
from tests.load.correctness.conversations import (
    VOCABULARY,
    Conversation,
    decode_prompt,
    next_prompt,
    opening,
    tokens_of,
    with_reply,
)
from tests.load.correctness.expectations import LegFacts, Offered
from tests.load.correctness.fleet import Fleet, LegRequest
from tests.load.correctness.histories import History, Turn
from tests.load.correctness.leg_checks import LegChecks, MismatchError, is_unexplained_expiry
from tests.load.correctness.tally import Tally

SHORT_TTL_SECONDS = 0.02
EXPIRING_SECONDS = 3.0
"""P declines a lease in its last 5 s."""
EXTENDED_SECONDS = 120.0


class HeldLease(msgspec.Struct, kw_only=True):
    """A lease that D granted in this history, and what is known of its end."""

    lease_id: str
    offer: str
    tokens: tuple[int, ...]
    adapter: int
    tenant: str
    is_gone: bool = False


class Branch(msgspec.Struct, kw_only=True):
    """One of a turn's parallel continuations, on its way through both legs."""

    conversation: Conversation
    turn_id: str
    handoff: str = ""
    answer: Answer | None = None
    lease: HeldLease | None = None

    @property
    def prompt(self) -> tuple[int, ...]:
        return tokens_of(self.conversation)


class HistoryRun:
    """Raises ``MismatchError`` at the first thing that is not exact; its leases are released in any case."""

    def __init__(self, fleet: Fleet, history: History, tally: Tally) -> None:
        self._fleet = fleet
        self._history = history
        self._tally = tally
        self._checks = LegChecks(tally)
        self._name = uuid.uuid4().hex
        self._leases: list[HeldLease] = []
        self._turn_ids: list[str] = []
        self._conversation: Conversation = ()
        self._truths: dict[tuple[tuple[int, ...], int, int], asyncio.Future[Answer]] = {}

    async def run(self) -> None:
        try:
            for index, turn in enumerate(self._history.turns):
                await self._turn(index, turn)
        finally:
            link = self._fleet.decode_link
            await asyncio.gather(*(link.release(lease.lease_id) for lease in self._leases))
            self._fleet.forget([*self._turn_ids, *(lease.lease_id for lease in self._leases)])
        self._tally.num_histories += 1

    async def _turn(self, index: int, turn: Turn) -> None:
        lease = self._leases[-1 - turn.offered] if turn.offered < len(self._leases) else None
        if index:
            self._tally.changes[turn.change] += 1
            self._tally.fates[turn.lease_fate] += 1
        if lease is not None:
            await self._meet_fate(turn, lease)
        branches = [
            Branch(
                conversation=next_prompt(self._conversation, turn, number) if self._conversation else opening(turn),
                turn_id=str(uuid.uuid4()),
            )
            for number in range(turn.num_branches if index else 1)
        ]
        self._turn_ids += [branch.turn_id for branch in branches]
        await asyncio.gather(
            *(self._prefill(index, turn, branch, lease) for branch in branches),
            *(self._fill(turn, number) for number in range(turn.num_fillers)),
        )
        await asyncio.gather(*(self._decode(index, turn, branch) for branch in branches))
        if turn.is_rechecked:
            await self._recheck(index, turn, branches[0])
        first = branches[0]
        assert first.answer is not None
        assert first.lease is not None
        self._leases.remove(first.lease)
        self._leases.append(first.lease)
        self._conversation = with_reply(decode_prompt(first.conversation, turn), first.answer.token_ids)

    def _tenant(self, turn: Turn) -> str:
        return f"{self._name}-{turn.tenant}"

    # ------------------------------------------------ the offered lease

    async def _meet_fate(self, turn: Turn, lease: HeldLease) -> None:
        link = self._fleet.decode_link
        if turn.lease_fate == "released":
            await link.release(lease.lease_id)
            await link.ended(lease.lease_id)
            lease.is_gone = True
        elif turn.lease_fate in ("extended", "expired", "expiring"):
            ttl_seconds = {"extended": EXTENDED_SECONDS, "expired": SHORT_TTL_SECONDS, "expiring": EXPIRING_SECONDS}
            renewed = await link.extend(lease.lease_id, ttl_seconds[turn.lease_fate])
            if renewed and (turn.lease_fate != "expired" or turn.where % 2):
                lease.offer = renewed
            if turn.lease_fate != "extended" or not renewed:
                lease.is_gone = True
            if turn.lease_fate == "expired" and renewed:
                await self._see_expiry(lease)

    async def _see_expiry(self, lease: HeldLease) -> None:
        ended = await self._fleet.decode_link.ended(lease.lease_id)
        if ended.state is not LeaseState.EXPIRED:
            raise MismatchError("an expired lease was reported as something else", state=ended.state)

    def _offered(self, lease: HeldLease) -> Offered:
        return Offered(
            tokens=lease.tokens,
            adapter=lease.adapter,
            tenant=lease.tenant,
            is_gone=lease.is_gone,
            may_be_gone=self._fleet.decode_link.has_ended(lease.lease_id),
        )

    # ------------------------------------------------ legs

    def _request(self, turn: Turn, turn_id: str, prompt: tuple[int, ...], offer: str | None) -> LegRequest:
        return LegRequest(
            prompt=prompt,
            adapter=turn.adapter,
            tenant=self._tenant(turn),
            session_id=self._name,
            turn_id=turn_id,
            offer=offer,
            policy=PolicyPatch(kv_recompute_threshold=turn.threshold_tokens),
            num_reply_tokens=turn.num_reply_tokens,
            is_streamed=turn.is_streamed,
        )

    async def _prefill(self, index: int, turn: Turn, branch: Branch, lease: HeldLease | None) -> None:
        engine = self._fleet.prefill_engine(caches=turn.caches_prefill)
        where, prompt = f"turn {index}, prefill", branch.prompt
        largest_hit = self._largest_hit(engine, turn, prompt)
        self._note_cached(engine, turn, prompt)
        leg = self._request(turn, branch.turn_id, prompt, lease.offer if lease else None)
        (answer, decided), truth = await asyncio.gather(self._fleet.prefill(engine, leg), self._truth(turn, prompt))
        branch.handoff = str(answer.backhaul["offer"])
        facts = self._facts(Role.PREFILL, turn, prompt, self._offered(lease) if lease else None)
        facts = msgspec.structs.replace(facts, num_local_tokens=decided.num_local_tokens)
        if lease is not None and is_unexplained_expiry(facts, decided):
            await self._fleet.decode_link.ended(lease.lease_id)
            facts = msgspec.structs.replace(facts, offered=self._offered(lease))
        if turn.num_branches > 1:
            largest_hit = len(prompt)
        self._checks.check_answer(where, answer, truth, 1)
        self._checks.check_decision(where, facts, decided, largest_hit)
        self._checks.check_reply(where, answer, decided)

    async def _decode(self, index: int, turn: Turn, branch: Branch) -> None:
        engine = self._fleet.trio.decode
        where, prompt = f"turn {index}, decode", tokens_of(decode_prompt(branch.conversation, turn))
        largest_hit = self._largest_hit(engine, turn, prompt)
        leg = self._request(turn, branch.turn_id, prompt, branch.handoff)
        (answer, decided, lease), truth = await asyncio.gather(self._fleet.decode(leg), self._truth(turn, prompt))
        branch.answer = answer
        held = (*prompt, *answer.token_ids[:-1])
        self._note_cached(engine, turn, held)
        branch.lease = HeldLease(
            lease_id=lease.lease.lease_id,
            offer=lease.offer,
            tokens=held,
            adapter=turn.adapter,
            tenant=self._tenant(turn),
        )
        self._leases.append(branch.lease)
        handed = Offered(tokens=branch.prompt, adapter=turn.adapter, tenant=self._tenant(turn))
        facts = self._facts(Role.DECODE, turn, prompt, handed)
        facts = msgspec.structs.replace(facts, num_local_tokens=decided.num_local_tokens)
        if turn.num_branches > 1:
            largest_hit = len(prompt)
        self._checks.check_answer(where, answer, truth, turn.num_reply_tokens)
        self._checks.check_decision(where, facts, decided, largest_hit)
        self._checks.check_lease(where, lease, len(held), self._tenant(turn))

    def _facts(self, role: Role, turn: Turn, prompt: tuple[int, ...], offered: Offered | None) -> LegFacts:
        return LegFacts(
            role=role,
            prompt=prompt,
            adapter=turn.adapter,
            tenant=self._tenant(turn),
            threshold_tokens=turn.threshold_tokens,
            offered=offered,
            num_local_tokens=0,
        )

    def _largest_hit(self, engine: Engine, turn: Turn, prompt: tuple[int, ...]) -> int:
        return self._checks.bounds.largest_hit(engine.name, self._tenant(turn), turn.adapter, prompt)

    def _note_cached(self, engine: Engine, turn: Turn, tokens: tuple[int, ...]) -> None:
        if engine.name != self._fleet.trio.plain_prefill.name:
            self._checks.bounds.note(engine.name, self._tenant(turn), turn.adapter, tokens)

    # ------------------------------------------------ beside the legs

    async def _truth(self, turn: Turn, prompt: tuple[int, ...]) -> Answer:
        """A full recompute of prompt and reply; the legs of one prompt share it."""
        key = (prompt, turn.adapter, turn.num_reply_tokens)
        if key not in self._truths:
            self._tally.num_recomputed += 1
            self._truths[key] = asyncio.ensure_future(self._fleet.recompute(*key))
        return await self._truths[key]

    async def _fill(self, turn: Turn, number: int) -> None:
        source = random.Random(f"{turn.seed}/filler {number}")
        self._tally.num_fillers += 1
        prompt = tuple(source.choice(VOCABULARY) for _ in range(500))
        await self._fleet.fill(self._fleet.trio.decode, prompt)

    async def _recheck(self, index: int, turn: Turn, branch: Branch) -> None:
        """No transfer may have left anything wrong in an engine's own prefix cache."""
        truth = await self._truth(turn, branch.prompt)
        for engine in (self._fleet.trio.caching_prefill, self._fleet.trio.decode):
            answer = await self._fleet.plain(engine, branch.prompt, turn.adapter, self._tenant(turn))
            self._note_cached(engine, turn, branch.prompt)
            self._tally.num_rechecked += 1
            self._checks.check_answer(f"turn {index}, no params, {engine.name}", answer, truth, 1)
