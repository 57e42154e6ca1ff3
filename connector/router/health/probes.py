"""Asks engines that nothing was heard of whether they still serve."""

import asyncio
import random
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from connector.http import Reply, ReplyTooLargeError
from connector.router.fleet import Engine, Fleet
from connector.router.health.breaker import Signal, signal_of
from connector.router.live import Source
from connector.router.metrics import Metrics
from connector.router.secretfiles import bearing
from connector.router.upstream import EngineFailedError, Upstream

ANSWER_SECONDS = 2.0
"""How long an idle engine's server may take for ``GET /health``."""

TOKEN_SECONDS = 10.0
"""How long one token may take on trial. A frozen core answers ``/health`` all the same, but never a completion."""

TRIAL_PAUSE_SECONDS = 0.5
JITTER = 0.2
MAX_ANSWER_BYTES = 64 * 1024
PROMPT = [1]
"""A token id, so that no tokenizer is asked."""


class HealthProbes:
    """One task for each engine of the fleet. Engines that answer turns are left alone: their answers tell enough.

    ``seconds``: between two looks at an engine; 0 turns probes off. ``stall_seconds``: how long an engine that has legs
    in flight may take for a token while it answers nothing else; longer than its longest prefill.
    """

    def __init__(
        self,
        fleet: Fleet,
        upstream: Upstream,
        engine_key: Source[str],
        metrics: Metrics,
        seconds: float,
        stall_seconds: float,
    ) -> None:
        self._fleet = fleet
        self._upstream = upstream
        self._engine_key = engine_key
        self._metrics = metrics
        self._seconds = seconds
        self._stall_seconds = stall_seconds
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def num_tasks(self) -> int:
        return len(self._tasks)

    def follow_fleet(self) -> None:
        """Begins with new engines, ends with gone ones; those that stay keep their task."""
        names = {engine.name for engine in self._fleet}
        for name in self._tasks.keys() - names:
            self._tasks.pop(name).cancel()
        for engine in self._fleet:
            if engine.health.on_ejection is None:
                engine.health.on_ejection = self._counter(engine.name)
            if self._seconds > 0 and engine.name not in self._tasks:
                self._tasks[engine.name] = asyncio.create_task(self._watch(engine.name), name=f"probe-{engine.name}")

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _counter(self, name: str) -> Callable[[Signal], None]:
        return lambda signal: self._metrics.ejections.labels(name, signal.value).inc()

    async def _watch(self, name: str) -> None:
        while (engine := self._fleet.get(name)) is not None:
            await asyncio.sleep(self._pause(engine))
            if engine.is_up:
                await self.look(engine)

    def _pause(self, engine: Engine) -> float:
        if not engine.health.is_closed:
            return min(TRIAL_PAUSE_SECONDS, self._seconds)
        return self._seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - not a secret

    async def look(self, engine: Engine) -> None:
        """One look: nothing of an engine that serves, a sign of life of an idle one, a token of any other.

        ``/health`` is answered by the server, also while the core is frozen or fails: it can't clear an engine that
        keeps turns waiting or failed one.
        """
        health = engine.health
        if health.is_closed:
            if health.silent_seconds <= self._seconds:
                return
            if engine.num_active > 0:
                await self._ask(engine, self._token(engine), self._stall_seconds)
            elif health.is_suspect:
                await self._ask(engine, self._token(engine), TOKEN_SECONDS)
            else:
                await self._ask(engine, self._sign_of_life(engine), ANSWER_SECONDS, proves=False)
        elif not health.is_ejected:
            health.start()
            await self._ask(engine, self._token(engine), TOKEN_SECONDS)

    async def _ask(
        self, engine: Engine, asking: Coroutine[Any, Any, Reply], seconds: float, *, proves: bool = True
    ) -> None:
        """What the engine answers counts like a turn's answer; without ``proves``, a good one is a sign of life only.

        Silence counts if nothing else was heard meanwhile either.
        """
        heard_before = engine.health.heard_at
        try:
            async with asyncio.timeout(seconds):
                status = (await asking).status
        except TimeoutError:
            if engine.health.heard_at == heard_before:
                self._conclude(engine, Signal.SILENT)
        except ReplyTooLargeError:
            self._conclude(engine, Signal.STATUS)
        except EngineFailedError as error:
            if not error.is_stale:
                self._conclude(engine, signal_of(error))
        else:
            self._conclude(engine, Signal.STATUS if status >= 500 else None, proves=proves)

    def _conclude(self, engine: Engine, signal: Signal | None, *, proves: bool = True) -> None:
        self._metrics.probes.labels(signal.value if signal else "ok").inc()
        if signal is None and not proves:
            engine.health.hear()
        else:
            engine.health.note(signal)

    async def _sign_of_life(self, engine: Engine) -> Reply:
        return await self._upstream.get_reply(engine.url("/health"), bearing(self._engine_key), MAX_ANSWER_BYTES)

    async def _token(self, engine: Engine) -> Reply:
        """Its salt is its own, so that it neither finds nor leaves anything in a cache that tenants use."""
        body = msgspec.json.encode(
            {
                "model": engine.facts.model,
                "prompt": PROMPT,
                "max_tokens": 1,
                "temperature": 0,
                "cache_salt": secrets.token_hex(8),
            }
        )
        fields = f"authorization: Bearer {self._engine_key.current}\r\ncontent-type: application/json\r\n".encode()
        return await self._upstream.post(engine.url("/v1/completions"), body, fields, MAX_ANSWER_BYTES)
