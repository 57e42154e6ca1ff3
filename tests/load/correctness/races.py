"""Releases raced against the reads of the released blocks, while strangers' requests grab every freed block at once.

Most free blocks of the engines are held back by ballast leases, so that what a release frees is written to again within
milliseconds. A read that is late by that much and yet believed gives wrong log-probabilities.
"""

import asyncio
import random
import uuid
from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from connector.protocol import Decision, LegDecided, PolicyPatch
from deploy.local.engines import Engine
from tests.load.correctness.comparison import Answer
from tests.load.correctness.conversations import VOCABULARY
from tests.load.correctness.fleet import Fleet, LegRequest
from tests.load.correctness.histories import BLOCK_SIZE
from tests.load.correctness.leg_checks import LegChecks, MismatchError
from tests.load.correctness.tally import Tally

BALLAST_BLOCKS = 30
FREE_BLOCKS = 40
NUM_FILLERS = 3
"""Of 20 blocks each. A cached block that was let go is the last to be taken, so few others are free: those that let go
are written to in the fillers' first step.
"""
OFFSETS_MS = (-25.0, 15.0)
"""Of the release, from the moment when the reading leg is posted."""
POSSIBLE = (Decision.PULLED, Decision.EXPIRED)
HELD_SECONDS = 3600

T = TypeVar("T")


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """``reader``: the role that reads while its source is told to let go."""

    seed: int
    reader: str
    num_tokens: int
    offset_ms: float
    caches_prefill: bool


def draw_race(seed: int) -> Race:
    source = random.Random(f"race {seed}")
    return Race(
        seed=seed,
        reader=source.choice(("prefill", "prefill", "decode")),
        num_tokens=source.randrange(400, 680),
        offset_ms=source.uniform(*OFFSETS_MS),
        caches_prefill=source.random() < 0.5,
    )


class Ballast:
    """Leases that hold all but ``FREE_BLOCKS`` of each engine's blocks while the context lasts."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._held: list[tuple[Engine, str]] = []

    async def __aenter__(self) -> "Ballast":
        for engine in (self._fleet.trio.plain_prefill, self._fleet.trio.caching_prefill):
            await self._fill(engine)
        await self._fill(self._fleet.trio.decode)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self._fleet.link(engine).release(key) for engine, key in self._held))

    async def _fill(self, engine: Engine) -> None:
        load = (await self._fleet.link(engine).ping()).load
        num_blocks = load.num_free_blocks - FREE_BLOCKS
        while num_blocks > 0:
            num_here = min(BALLAST_BLOCKS, num_blocks)
            await self._hold(engine, plain_leg(random_prompt(num_here * BLOCK_SIZE, f"ballast {num_blocks}")))
            num_blocks -= num_here

    async def _hold(self, engine: Engine, leg: LegRequest) -> None:
        if engine is self._fleet.trio.decode:
            _, _, lease = await self._fleet.decode(leg)
            await self._fleet.decode_link.extend(lease.lease.lease_id, HELD_SECONDS, pinned=True)
            self._held.append((engine, lease.lease.lease_id))
        else:
            leg = msgspec.structs.replace(leg, policy=PolicyPatch(kv_lease_duration=HELD_SECONDS))
            answer, _ = await self._fleet.prefill(engine, leg)
            self._held.append((engine, str(answer.backhaul["lease_id"])))


class RaceRun:
    """Raises ``MismatchError`` when the reading leg's answer is not a recompute's, or says something impossible."""

    def __init__(self, fleet: Fleet, race: Race, tally: Tally) -> None:
        self._fleet = fleet
        self._race = race
        self._tally = tally
        self._checks = LegChecks(tally)

    async def run(self) -> None:
        if self._race.reader == "prefill":
            await self._race_prefill()
        else:
            await self._race_decode()
        self._tally.num_races += 1

    async def _race_prefill(self) -> None:
        """A session lease of D is released while P reads it."""
        fleet = self._fleet
        first = plain_leg(random_prompt(self._race.num_tokens, f"race {self._race.seed}"))
        answer, _, lease = await fleet.decode(first)
        prompt = (*first.prompt, *answer.token_ids, *random_prompt(20, f"new {self._race.seed}"))
        reading = msgspec.structs.replace(first, prompt=prompt, turn_id=str(uuid.uuid4()), offer=lease.offer)
        engine = fleet.prefill_engine(caches=self._race.caches_prefill)
        (answer, decided), _ = await asyncio.gather(
            self._late(fleet.prefill(engine, reading)), self._release(fleet.trio.decode, lease.lease.lease_id)
        )
        await fleet.link(engine).release(str(answer.backhaul["lease_id"]))
        await self._check(reading, answer, decided, "D->P")
        if self._race.caches_prefill:
            again = await fleet.plain(engine, prompt, 0, reading.tenant)
            self._checks.check_answer("no params after a race", again, await self._recompute(prompt), 1)

    async def _race_decode(self) -> None:
        """A handoff of P is released while D reads it."""
        fleet = self._fleet
        engine = fleet.prefill_engine(caches=self._race.caches_prefill)
        first = plain_leg(random_prompt(self._race.num_tokens, f"race {self._race.seed}"))
        answer, _ = await fleet.prefill(engine, first)
        reading = msgspec.structs.replace(first, offer=str(answer.backhaul["offer"]))
        (answer, decided, lease), _ = await asyncio.gather(
            self._late(fleet.decode(reading)), self._release(engine, str(answer.backhaul["lease_id"]))
        )
        await fleet.decode_link.release(lease.lease.lease_id)
        await self._check(reading, answer, decided, "P->D")
        again = await fleet.plain(fleet.trio.decode, reading.prompt, 0, reading.tenant)
        self._checks.check_answer("no params after a race", again, await self._recompute(reading.prompt), 1)

    async def _late(self, reading: Awaitable[T]) -> T:
        await asyncio.sleep(max(0.0, -self._race.offset_ms) / 1e3)
        return await reading

    async def _release(self, engine: Engine, lease_id: str) -> None:
        link = self._fleet.link(engine)
        await asyncio.sleep(max(0.0, self._race.offset_ms) / 1e3)
        await asyncio.gather(link.release(lease_id), *(self._grab(engine, number) for number in range(NUM_FILLERS)))

    async def _grab(self, engine: Engine, number: int) -> None:
        self._tally.num_fillers += 1
        await self._fleet.fill(engine, random_prompt(640, f"grab {self._race.seed} {number}"))

    async def _recompute(self, prompt: tuple[int, ...]) -> Answer:
        self._tally.num_recomputed += 1
        return await self._fleet.recompute(prompt, 0)

    async def _check(self, leg: LegRequest, answer: Answer, decided: LegDecided, direction: str) -> None:
        self._tally.num_legs += 1
        self._tally.races[f"{direction} {decided.decision.value}"] += 1
        self._checks.check_answer(f"race {direction}", answer, await self._recompute(leg.prompt), len(answer.top))
        if decided.decision not in POSSIBLE:
            raise MismatchError("a race ended in an impossible decision", decided=msgspec.to_builtins(decided))


def plain_leg(prompt: tuple[int, ...]) -> LegRequest:
    """A first turn of a tenant of its own."""
    return LegRequest(
        prompt=prompt,
        adapter=0,
        tenant=uuid.uuid4().hex,
        session_id=uuid.uuid4().hex,
        turn_id=str(uuid.uuid4()),
        offer=None,
    )


def random_prompt(num_tokens: int, seed: str) -> tuple[int, ...]:
    source = random.Random(seed)
    return tuple(source.choice(VOCABULARY) for _ in range(num_tokens))
