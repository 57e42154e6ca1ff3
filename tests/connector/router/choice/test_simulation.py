"""Four prefill and four decode engines under many conversations, in simulated time: load spreads and reuse is kept."""

import heapq
import random
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count

import pytest

from connector.protocol import Decision, LegReply
from connector.router.choice.choose import Why
from connector.router.choice.plan import Plan
from connector.router.fleet import Engine
from connector.router.placement import Placement
from connector.router.turnstate import Outcome, Turn
from tests.connector.router.choice.fleets import MODEL, Yard, chat, lease_of, placed, turn_of

SYSTEM = "s" * 8000
SYSTEM_TOKENS = 2000
QUESTION = "q" * 800
REPLY = "r" * 400
STEP_TOKENS = 300
REPLY_TOKENS = 100

COMPUTE = 1e-4
READ = 1e-5
STEP = 0.01
SLOWDOWN = 0.02


@dataclass
class Tally:
    decode: Counter[str] = field(default_factory=Counter)
    prefill: Counter[str] = field(default_factory=Counter)
    num_next: int = 0
    num_next_at_holder: int = 0
    num_moves: int = 0
    peak: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)


class Simulation:
    """Sessions are generators that yield how long they wait. Prefill engines compute in turn, decode slows by batch."""

    def __init__(self, yard: Yard, seed: int, speed: dict[str, float] | None = None) -> None:
        self.yard = yard
        self.random = random.Random(seed)
        self.speed = speed or {}
        self.tally = Tally()
        self.free_at: Counter[str] = Counter()
        self._number = count()
        self._heap: list[tuple[float, int, Generator[float, None, None]]] = []

    def add(self, at: float, session: Generator[float, None, None]) -> None:
        heapq.heappush(self._heap, (self.yard.clock.now + at, next(self._number), session))

    def run(self) -> Tally:
        while self._heap:
            now, _, session = heapq.heappop(self._heap)
            self.yard.clock.now = now
            wait = next(session, None)
            if wait is not None:
                self.add(wait, session)
        return self.tally

    def session(self, name: str, num_turns: int, think_seconds: float) -> Generator[float, None, None]:
        holder, tokens, texts, tails = "", 0, [SYSTEM], [f"{name}-0"]
        for number in range(num_turns):
            texts = [*texts, REPLY, QUESTION] if number else [SYSTEM + QUESTION]
            known = SYSTEM_TOKENS + number * STEP_TOKENS
            placement = self._placement(holder, tokens, len(texts), tails)
            turn = turn_of(chat(*texts), placement, self.yard.clock.now)
            yield from self._serve(turn, known)
            assert turn.decode_engine is not None
            if holder:
                self.tally.num_next += 1
                self.tally.num_next_at_holder += turn.decode_engine.name == holder
                self.yard.book.held[holder] -= 1
            holder, tokens = turn.decode_engine.name, known + REPLY_TOKENS
            self.yard.book.held[holder] += 1
            tails.append(f"{name}-{number + 1}")
            yield self.random.expovariate(1 / think_seconds)

    def _placement(self, holder: str, tokens: int, num_messages: int, tails: list[str]) -> Placement:
        if holder:
            return placed(
                lease=lease_of(holder, tokens),
                num_common=num_messages - 2,
                is_continued=True,
                holder=holder,
                chain=("#1", *tails),
            )
        shared = next((e for e in ("d0", "d1", "d2", "d3") if self.yard.book.held[e]), "")
        lease = lease_of(shared, SYSTEM_TOKENS) if shared else None
        return placed(lease=lease, chain=("#0", *tails))

    def _serve(self, turn: Turn, num_tokens: int) -> Generator[float, None, None]:
        yard, chooser = self.yard, self.yard.chooser
        plan = turn.plan = chooser.plan(turn.request, turn.placement, MODEL)
        decoder = chooser.decode(plan, turn.placement, MODEL)
        assert decoder is not None
        turn.reserve(decoder)
        self.tally.decode[decoder.name] += 1
        self.tally.peak[decoder.name] = max(self.tally.peak[decoder.name], decoder.num_active)
        prefiller = chooser.prefill(plan, turn.placement, MODEL, decoder)
        assert prefiller is not None
        self.tally.prefill[prefiller.name] += 1
        yield from self._prefill(turn, plan, prefiller, num_tokens)
        turn.decode.start = yard.clock.now
        yield max(0, num_tokens - plan.num_at_decode) * READ + STEP
        turn.first_event_at = yard.clock.now
        yield REPLY_TOKENS * STEP * self.speed.get(decoder.name, 1.0) * (1 + SLOWDOWN * decoder.num_active)
        turn.decode.end = yard.clock.now
        turn.outcome, turn.num_output_tokens, turn.num_prompt_tokens = Outcome.OK, REPLY_TOKENS, num_tokens
        turn.unreserve()
        yard.learner.learn(turn)

    def _prefill(self, turn: Turn, plan: Plan, engine: Engine, num_tokens: int) -> Generator[float, None, None]:
        clock = self.yard.clock
        turn.prefill_engine, turn.prefill.start = engine, clock.now
        engine.begin_leg()
        pulled = plan.size.num_common
        work = (num_tokens - pulled) * COMPUTE * self.speed.get(engine.name, 1.0) + pulled * READ
        start = max(clock.now, self.free_at[engine.name])
        self.free_at[engine.name] = start + work
        self.tally.waits.append(start - clock.now)
        yield start + work - clock.now
        self.yard.chooser.end_prefill(plan, engine)
        engine.end_leg()
        turn.prefill.end = clock.now
        decision = Decision.PULLED if pulled else Decision.NO_PLACEMENT
        turn.reply = LegReply(offer="o", decision=decision, num_pulled_tokens=pulled, lease_id="l")


def spread(counts: Counter[str], names: list[str]) -> float:
    """The busiest engine's share over the mean."""
    return max(counts[name] for name in names) * len(names) / max(1, sum(counts.values()))


DECODERS = ["d0", "d1", "d2", "d3"]
PREFILLERS = ["p0", "p1", "p2", "p3"]


@pytest.mark.parametrize("seed", range(3))
def test_load_spreads_and_conversations_stay_where_their_kv_is(seed: int) -> None:
    simulation = Simulation(Yard(4, 4), seed)
    for number in range(150):
        simulation.add(simulation.random.uniform(0, 30), simulation.session(f"s{number}", 6, 4.0))
    tally = simulation.run()
    assert sum(tally.decode.values()) == 900
    assert spread(tally.decode, DECODERS) < 1.25, tally.decode
    assert spread(tally.prefill, PREFILLERS) < 1.25, tally.prefill
    assert spread(tally.peak, DECODERS) < 1.5, tally.peak
    assert tally.num_next_at_holder / tally.num_next > 0.95
    assert sum(tally.waits) / len(tally.waits) < 0.1
    assert all(engine.num_active == 0 for engine in simulation.yard.fleet)


@pytest.mark.parametrize("seed", range(3))
def test_everybody_at_once_spreads_as_well(seed: int) -> None:
    """Cold turns that share a system prompt and come in one moment: choices must see each other."""
    simulation = Simulation(Yard(4, 4), seed)
    for number in range(80):
        simulation.add(0.0, simulation.session(f"s{number}", 1, 1.0))
    tally = simulation.run()
    assert sorted(tally.decode[name] for name in DECODERS) == [20] * 4, tally.decode
    assert spread(tally.prefill, PREFILLERS) < 1.1, tally.prefill


def test_slow_engines_get_less_once_they_are_known_to_be_slow() -> None:
    simulation = Simulation(Yard(4, 4), 5, speed={"d0": 4.0, "p0": 4.0})
    for number in range(200):
        simulation.add(simulation.random.uniform(0, 40), simulation.session(f"s{number}", 4, 3.0))
    tally = simulation.run()
    assert tally.prefill["p0"] < min(tally.prefill[name] for name in PREFILLERS[1:]) / 2, tally.prefill
    assert tally.decode["d0"] < min(tally.decode[name] for name in DECODERS[1:]), tally.decode
    assert tally.num_next_at_holder / tally.num_next > 0.8


def test_hot_holder_gives_conversations_up_and_the_others_take_them() -> None:
    """Far more than an engine's share is held by one: it keeps what isn't clearly dearer there."""
    yard = Yard(4, 4)
    yard.load("d0", num_running=60, num_waiting=40)
    plan = yard.chooser.plan(chat(SYSTEM + QUESTION, REPLY, QUESTION), placed(), MODEL)
    held = placed(lease=lease_of("d0", 2100), num_common=1, is_continued=True, holder="d0")
    assert yard.chooser.decode(plan, held, MODEL) is not yard.engine("d0")
    assert plan.decode is not None
    assert plan.decode.why is Why.CHEAPEST
    yard.load("d0", num_running=1)
    assert yard.chooser.decode(plan, held, MODEL) is yard.engine("d0")
