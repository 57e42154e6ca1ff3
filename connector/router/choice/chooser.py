"""Chooses the engines of a turn from what is known now: fleet, leases, loads, and what past turns taught."""

from collections.abc import Iterable

from connector.protocol import Role
from connector.router.choice.choose import NOISE_SHARE, Candidate, Choice, Why, choose
from connector.router.choice.costs import DecodeLoad, PrefillWork, decode_cost, leases_ratio, prefill_cost, prefill_work
from connector.router.choice.plan import Plan
from connector.router.choice.prefixes import PrefixMemory
from connector.router.choice.sizes import size_of
from connector.router.choice.speeds import Speeds, pair_key
from connector.router.fleet import Engine, Fleet
from connector.router.health.pairs import Pairs
from connector.router.leases import LeaseBook
from connector.router.placement import Placement
from connector.router.requests import TurnRequest

TYPICAL_FOREIGN_TOKENS = 1000
"""What a request of another router is taken to have for prefill to compute."""


class Chooser:
    """Changed on the event loop only. Every method is synchronous and O(engines + prefixes looked up)."""

    def __init__(self, fleet: Fleet, book: LeaseBook, speeds: Speeds, prefixes: PrefixMemory, pairs: Pairs) -> None:
        self._fleet = fleet
        self._book = book
        self._speeds = speeds
        self._prefixes = prefixes
        self._pairs = pairs
        self._num_queued: dict[str, float] = {}

    def plan(self, request: TurnRequest, placement: Placement, model: str) -> Plan:
        lease = placement.lease
        return Plan(
            lambda: size_of(request, placement, self._speeds.tokens_per_byte.of(model, "")),
            lease.engine if lease is not None else "",
        )

    def decode(self, plan: Plan, placement: Placement, model: str, but: Engine | None = None) -> Engine | None:
        """The decode engine of the turn; absent when there is none. ``but`` has just failed it."""
        engines = [engine for engine in self._fleet.engines_accepting(Role.DECODE, model) if engine is not but]
        if len(engines) == 1:
            plan.decode = Choice(Candidate(engines[0].name), Why.ONLY if but is None else Why.RETRY)
            return engines[0]
        mean = sum(self._book.num_of(engine.name) for engine in engines) / max(1, len(engines))
        candidates = [self._decode_candidate(e, plan, placement, model, mean) for e in engines]
        choice = choose(candidates, self._noise_seconds(placement, model))
        if choice is None:
            return None
        plan.decode = choice if but is None else Choice(choice.chosen, Why.RETRY, choice.rejected)
        return next(engine for engine in engines if engine.name == choice.chosen.name)

    def keep(self, plan: Plan, keeper: Engine) -> Engine:
        """Nobody else can render the prompt."""
        plan.decode = Choice(Candidate(keeper.name), Why.KEEPER)
        return keeper

    def is_decode_local(self, plan: Plan, placement: Placement) -> bool:
        """Decode appends so few tokens to what it holds, without a prefill leg. A cold prompt is no such turn."""
        limit = placement.policy.decode_local_max_new_tokens
        plan.is_decode_local = limit > 0 and plan.num_at_decode > 0 and plan.num_lacking <= limit
        return plan.is_decode_local

    def prefill(self, plan: Plan, placement: Placement, model: str, decoder: Engine) -> Engine | None:
        """The prefill engine of the turn; absent when there is none."""
        engines = self._fleet.engines_accepting(Role.PREFILL, model)
        if len(engines) == 1:
            plan.prefill = Choice(Candidate(engines[0].name), Why.ONLY)
            return engines[0]
        works = {engine.name: self._work(engine, plan, placement) for engine in engines}
        choice = choose([self._prefill_candidate(e, works[e.name], plan, placement, decoder) for e in engines])
        if choice is None:
            return None
        engine = next(engine for engine in engines if engine.name == choice.chosen.name)
        plan.prefill, plan.work = choice, works[engine.name]
        plan.num_remembered = self._prefixes.remembered(engine.name, engine.incarnation, placement.chain)
        plan.num_ahead = self._backlog(engine)
        self._num_queued[engine.name] = self._num_queued.get(engine.name, 0.0) + plan.work.num_computed
        return engine

    def end_prefill(self, plan: Plan, engine: Engine) -> None:
        """The leg's tokens counted as queued at the engine from its choice until now."""
        if not plan.is_prefill_priced:
            return
        left = self._num_queued[engine.name] - plan.work.num_computed
        if left > 0:
            self._num_queued[engine.name] = left
        else:
            del self._num_queued[engine.name]

    def note_prefilled(self, engine: Engine, placement: Placement, num_tokens: int) -> None:
        """The engine has the prompt in its cache now, if it has one."""
        prompt = placement.chain[-1] if len(placement.chain) > 1 else ""
        self._prefixes.note(engine.name, engine.incarnation, prompt, num_tokens)

    def note_found(self, engine: Engine, share: float) -> None:
        self._prefixes.note_found(engine.name, engine.incarnation, share)

    def _decode_candidate(
        self, engine: Engine, plan: Plan, placement: Placement, model: str, mean_leases: float
    ) -> Candidate:
        speeds, name, incarnation = self._speeds, engine.name, engine.incarnation
        num_lacking = max(0, plan.size.num_tokens - plan.num_held_by(name))
        turn_seconds = speeds.turn_seconds(name, incarnation, model)
        per_token = speeds.transfer.of(name, incarnation)
        cost = decode_cost(self._load(engine, mean_leases), turn_seconds, num_lacking, per_token)
        return Candidate(name, cost, engine.picked_at, engine.is_avoided, name == placement.holder)

    def _noise_seconds(self, placement: Placement, model: str) -> float:
        holder = self._fleet.get(placement.holder) if placement.holder else None
        return NOISE_SHARE * self._speeds.turn_seconds(holder.name, holder.incarnation, model) if holder else 0.0

    def _prefill_candidate(
        self, engine: Engine, work: PrefillWork, plan: Plan, placement: Placement, decoder: Engine
    ) -> Candidate:
        speeds, name, incarnation = self._speeds, engine.name, engine.incarnation
        compute = speeds.prefill.of(name, incarnation)
        pull = self._pair_speed(placement.lease.engine, engine) if placement.lease and work.num_pulled else 0.0
        handoff = plan.num_lacking * self._pair_speed(name, decoder)
        cost = prefill_cost(work, self._backlog(engine), compute, pull, handoff)
        return Candidate(name, cost, engine.picked_at, engine.is_avoided)

    def _work(self, engine: Engine, plan: Plan, placement: Placement) -> PrefillWork:
        local = self._prefixes.num_local(engine.name, engine.incarnation, placement.chain)
        is_offered = placement.lease is not None and not self._pairs.is_out(placement.lease.engine, engine.name)
        offered = plan.size.num_common if is_offered else 0
        return prefill_work(plan.size.num_tokens, offered, local, placement.policy.kv_recompute_threshold)

    def _pair_speed(self, source: str, reader: Engine) -> float:
        known = self._fleet.get(source)
        incarnations = f"{known.incarnation if known else ''}>{reader.incarnation}"
        return self._speeds.transfer.of(pair_key(source, reader.name), incarnations)

    def _backlog(self, engine: Engine) -> float:
        tokens = self._num_queued.get(engine.name, 0.0) + engine.num_foreign * TYPICAL_FOREIGN_TOKENS
        share = engine.health.share
        return tokens if share == 1.0 else (tokens + TYPICAL_FOREIGN_TOKENS) / share - TYPICAL_FOREIGN_TOKENS

    def _load(self, engine: Engine, mean_leases: float) -> DecodeLoad:
        said = engine.load if engine.feed_state is not None else None
        return DecodeLoad(
            num_in_flight=slowly(engine.num_active + engine.num_foreign, engine.health.share),
            num_running=said.num_running if said else 0,
            num_waiting=said.num_waiting if said else 0,
            leases_ratio=leases_ratio(self._book.num_of(engine.name), mean_leases),
            leased_share=said.num_leased_blocks / max(1, said.num_blocks) if said else 0.0,
        )


def slowly(num_in_flight: int, share: float) -> float:
    """An engine that came back counts as one with more turns than it has, until it has its share again."""
    return num_in_flight if share == 1.0 else (num_in_flight + 1) / share - 1


def least_busy(engines: Iterable[Engine]) -> Engine | None:
    """For requests without KV: fewest in flight, then longest not picked; avoided ones come last."""
    return min(engines, key=lambda engine: (engine.is_avoided, engine.num_active, engine.picked_at), default=None)
