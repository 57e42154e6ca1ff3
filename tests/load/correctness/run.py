"""The whole run on live engines: many histories at a time, then races, with progress and the failures minimised."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from deploy.local.console import Console
from tests.load.correctness.fleet import Fleet
from tests.load.correctness.histories import History, generate
from tests.load.correctness.history_run import HistoryRun
from tests.load.correctness.leg_checks import MismatchError
from tests.load.correctness.minimise import minimise
from tests.load.correctness.races import Ballast, Race, RaceRun, draw_race, random_prompt
from tests.load.correctness.tally import Tally

NUM_HISTORIES_AT_A_TIME = 5
NUM_RACES_AT_A_TIME = 2
PROGRESS_SECONDS = 10.0
MAX_FAILURES = 5
SEEDS_PER_RUN = 1_000_000
"""History ``i`` of run ``s`` has seed ``s * SEEDS_PER_RUN + i``, so that runs of other seeds share none."""


class CorrectnessRun:
    def __init__(self, fleet: Fleet, console: Console, tally: Tally) -> None:
        self._fleet = fleet
        self._console = console
        self._tally = tally

    async def warm_up(self) -> None:
        """An engine's first request of each kind takes seconds."""
        await asyncio.gather(
            *(self._fleet.recompute(random_prompt(500, "warm-up"), adapter) for adapter in (0, 1, 2) for _ in range(3))
        )

    async def histories(self, seed: int, count: int) -> None:
        drawn = (generate(seed * SEEDS_PER_RUN + number) for number in range(count))
        await self._in_parallel("histories", drawn, count, NUM_HISTORIES_AT_A_TIME, self._play)

    async def races(self, seed: int, count: int) -> None:
        drawn = (draw_race(seed * SEEDS_PER_RUN + number) for number in range(count))
        async with Ballast(self._fleet):
            await self._in_parallel("races", drawn, count, NUM_RACES_AT_A_TIME, self._race)

    async def replay(self, history: History) -> None:
        await self._play(history)

    async def _play(self, history: History) -> None:
        await self._noting_failures("history", history, HistoryRun(self._fleet, history, self._tally).run())

    async def _race(self, race: Race) -> None:
        await self._noting_failures("race", race, RaceRun(self._fleet, race, self._tally).run())

    async def _noting_failures(self, kind: str, source: History | Race, playing: Awaitable[None]) -> None:
        """An engine that answers an error, or nothing, is a failure like a wrong token."""
        try:
            await playing
        except Exception as error:  # noqa: BLE001 - noted, printed, and the run fails
            what = error.what if isinstance(error, MismatchError) else type(error).__name__
            self._console.say(f"{kind} of seed {source.seed} failed: {error}")
            failure = {"kind": kind, "what": what, "error": str(error), "source": msgspec.to_builtins(source)}
            self._tally.failures.append(failure)

    async def minimise_first(self) -> History | None:
        """The smallest history that fails as well, of the first failure that is a history's."""
        failed = next((failure for failure in self._tally.failures if failure["kind"] == "history"), None)
        if failed is None:
            return None
        loop = asyncio.get_running_loop()

        def fails(history: History) -> bool:
            return asyncio.run_coroutine_threadsafe(self._fails(history), loop).result()

        return await asyncio.to_thread(minimise, msgspec.convert(failed["source"], History), fails)

    async def _fails(self, history: History) -> bool:
        try:
            await HistoryRun(self._fleet, history, Tally()).run()
        except Exception:  # noqa: BLE001 - that it fails is the question
            return True
        return False

    async def _in_parallel(
        self,
        name: str,
        items: Iterable[Any],
        count: int,
        num_at_a_time: int,
        play: Callable[[Any], Awaitable[None]],
    ) -> None:
        waiting = iter(items)
        progress = Progress(self._console, name, count, self._tally)

        async def work() -> None:
            for item in waiting:
                if len(self._tally.failures) >= MAX_FAILURES:
                    return
                await play(item)
                progress.one_done()

        await asyncio.gather(*(work() for _ in range(num_at_a_time)))


class Progress:
    """A line every few seconds, with the time that is left."""

    def __init__(self, console: Console, name: str, count: int, tally: Tally) -> None:
        self._console = console
        self._name = name
        self._count = count
        self._tally = tally
        self._num_done = 0
        self._started = self._said = time.monotonic()

    def one_done(self) -> None:
        self._num_done += 1
        now = time.monotonic()
        if now - self._said < PROGRESS_SECONDS and self._num_done < self._count:
            return
        self._said = now
        left = (now - self._started) / self._num_done * (self._count - self._num_done)
        self._console.say(
            f"{self._name}: {self._num_done} of {self._count}, {self._tally.num_legs} legs, "
            f"{len(self._tally.failures)} failures, largest difference {self._tally.largest_difference:.1e}, "
            f"{left:.0f} s left"
        )
