"""Engines that fail, as turns and probes see them: out of use, on trial, back; and nothing is left counted."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from connector.protocol import EngineState, Role
from connector.router.health.breaker import Signal
from tests.connector.router.conftest import MODEL, Scene, user
from tests.connector.router.fake_engine import FakeEngine, Received, error_response
from tests.connector.router.sse import chunk
from tests.connector.router.waiting import eventually

PROBE_SECONDS = 0.05
STALL_SECONDS = 0.5
NUM_ROUNDS = 1000


@pytest.fixture
async def watched(still_scene: Scene) -> Scene:
    """Two decode engines, and probes that are quick."""
    await still_scene.add_engine("d1", Role.DECODE)
    still_scene.control.snapshot = still_scene.snapshot()
    await still_scene.start_router(
        probe_seconds=PROBE_SECONDS, stall_seconds=STALL_SECONDS, engine_timeout_seconds=600.0
    )
    return still_scene


def health_of(scene: Scene, name: str) -> Any:
    engine = scene.live.fleet.get(name)
    assert engine is not None
    return engine.health


async def status_of_turn(scene: Scene, text: str, **fields: Any) -> int:
    body = {"model": MODEL, "messages": [user(text)], **fields}
    async with scene.post("/v1/chat/completions", body) as response:
        await response.read()
        return int(response.status)


async def test_idle_engine_that_stops_listening_is_found_and_taken_back(watched: Scene) -> None:
    await watched.decode.stop_serving()
    await eventually(lambda: not health_of(watched, "d0").is_closed, "the probe finds d0 gone")
    assert watched.metric('engine_ejections_total{engine="d0",signal="connect"}') >= 1
    for number in range(6):
        assert await status_of_turn(watched, f"turn {number}") == 200
    assert watched.metric('decode_retries_total{reason="connect"}') == 0
    await watched.decode.start_serving()
    await eventually(lambda: health_of(watched, "d0").is_closed, "d0 is back")


async def test_engine_whose_core_is_frozen_is_kept_out_though_its_server_answers(watched: Scene) -> None:
    """Field report 47: ``/health`` and the model list answer, a completion never does."""
    frozen = asyncio.Event()

    async def never() -> web.StreamResponse:
        await frozen.wait()
        return error_response(500, "thawed")

    watched.decode.probe = never
    health_of(watched, "d0").fail(Signal.SILENT)
    await eventually(lambda: watched.decode.num_tokens_probed == 1, "d0 is tried")
    assert health_of(watched, "d0").is_ejected
    watched.decode.probe = None
    frozen.set()
    await eventually(lambda: health_of(watched, "d0").is_closed, "d0 is back after a token")


async def test_core_that_freezes_under_turns_is_found_by_a_token_that_never_comes(watched: Scene) -> None:
    """Field report 47, with nobody to tell the router: the feed says ready, ``/health`` answers, no turn has failed."""
    frozen = asyncio.Event()

    async def hang(request: web.BaseRequest, received: Received) -> web.StreamResponse | None:
        await frozen.wait()
        return None

    async def never() -> web.StreamResponse:
        await frozen.wait()
        return error_response(500, "thawed")

    watched.prefill.script, watched.prefill.probe = hang, never
    turn = asyncio.create_task(status_of_turn(watched, "x"))
    await eventually(lambda: not health_of(watched, "p0").is_closed, "p0 is ejected")
    assert not turn.done()
    assert watched.prefill.received
    assert watched.metric('engine_ejections_total{engine="p0",signal="silent"}') >= 1
    watched.prefill.script = watched.prefill.probe = None
    frozen.set()
    assert await turn == 200
    await eventually(lambda: health_of(watched, "p0").is_closed, "p0 is back after a token")


async def test_engine_that_works_long_on_a_turn_is_not_frozen(watched: Scene) -> None:
    """It still computes a token for the probe, though the turn shows nothing."""
    done = asyncio.Event()

    async def work(request: web.BaseRequest, received: Received) -> web.StreamResponse | None:
        await done.wait()
        return None

    watched.prefill.script = work
    turn = asyncio.create_task(status_of_turn(watched, "x"))
    await eventually(lambda: watched.prefill.num_tokens_probed >= 3, "p0 is probed while it works")
    assert health_of(watched, "p0").is_closed
    done.set()
    assert await turn == 200


async def test_probe_that_waits_while_others_are_answered_tells_nothing(watched: Scene) -> None:
    """A long queue is no freeze."""
    done = asyncio.Event()

    async def work(request: web.BaseRequest, received: Received) -> web.StreamResponse | None:
        await done.wait()
        return None

    async def queue() -> web.StreamResponse:
        health_of(watched, "p0").hear()
        await done.wait()
        return error_response(500, "late")

    watched.prefill.script, watched.prefill.probe = work, queue
    turn = asyncio.create_task(status_of_turn(watched, "x"))
    await eventually(lambda: watched.prefill.num_tokens_probed >= 3, "p0 is probed while it works")
    assert health_of(watched, "p0").is_closed
    watched.prefill.probe = None
    done.set()
    assert await turn == 200


async def test_health_that_answers_between_failures_hides_none_of_them(watched: Scene) -> None:
    """A server says that it listens; only a served request says that the engine computes."""
    prefill = watched.prefill

    async def fail(request: web.BaseRequest, received: Received) -> web.Response:
        return error_response(500, "broken")

    prefill.script, prefill.probe = fail, lambda: _answer(500)
    for number in range(3):
        before = prefill.num_health_checks + prefill.num_tokens_probed
        assert await status_of_turn(watched, f"turn {number}") == 200
        await eventually(_looks_beyond(prefill, before), "p0 is looked at")
    assert not health_of(watched, "p0").is_closed


async def test_engine_that_answers_errors_is_ejected_and_the_last_one_still_serves(watched: Scene) -> None:
    async def fail(request: web.BaseRequest, received: Received) -> web.Response:
        return error_response(500, "broken")

    for engine in watched.engines:
        engine.probe = lambda: _answer(500)
    decoders = [engine for engine in watched.engines if engine.role is Role.DECODE]
    for engine in decoders:
        engine.script = fail
    while any(not health_of(watched, engine.name).is_ejected for engine in decoders):
        assert await status_of_turn(watched, "x") == 500
    decoders[1].script = None
    statuses = [await status_of_turn(watched, f"y {number}") for number in range(4)]
    assert 200 in statuses


async def test_failure_while_health_is_asked_still_counts(watched: Scene) -> None:
    watched.prefill.before_health = lambda: health_of(watched, "p0").fail(Signal.STATUS)
    watched.prefill.probe = lambda: _answer(200)
    await eventually(lambda: watched.prefill.num_tokens_probed > 0, "p0 has to compute a token")


def _looks_beyond(engine: FakeEngine, before: int) -> Callable[[], bool]:
    return lambda: engine.num_health_checks + engine.num_tokens_probed > before


async def _answer(status: int) -> web.StreamResponse:
    return error_response(status, "probed")


async def test_engine_that_is_busy_is_not_sick(watched: Scene) -> None:
    async def busy(request: web.BaseRequest, received: Received) -> web.Response:
        return error_response(429, "full", {"Retry-After": "3"})

    watched.prefill.script = busy
    for number in range(5):
        assert await status_of_turn(watched, f"turn {number}") == 429
    assert health_of(watched, "p0").is_closed


async def test_exactly_one_probe_for_each_engine_after_ten_snapshots(watched: Scene) -> None:
    """Field report 47: health tasks that die, or go on for engines that are gone."""
    for _ in range(10):
        await watched.publish()
    assert watched.live.probes.num_tasks == 3
    gone = watched.engines.pop()
    await watched.publish()
    assert watched.live.probes.num_tasks == 2
    names = {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("probe-")}
    await eventually(lambda: f"probe-{gone.name}" not in _probes(), "the probe of a gone engine ends")
    assert names - {f"probe-{gone.name}"} == {"probe-p0", "probe-d0"}
    await gone.stop()


def _probes() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("probe-")]


async def test_engine_that_comes_back_is_tried_before_it_is_in_use(watched: Scene) -> None:
    """Its connector says ready some seconds before its server listens."""
    await watched.decode.feed.change(EngineState.DOWN, "")
    await eventually(lambda: not watched.live.fleet.get("d0").is_up, "d0 is down")  # type: ignore[union-attr]
    await watched.decode.feed.change(EngineState.READY, watched.decode.feed.incarnation)
    await eventually(lambda: watched.live.fleet.get("d0").is_up, "d0 is up")  # type: ignore[union-attr]
    assert not health_of(watched, "d0").is_closed
    await eventually(lambda: health_of(watched, "d0").is_closed, "a token proves it")
    assert watched.decode.num_tokens_probed >= 1


@pytest.mark.timeout(600)
async def test_a_thousand_failures_leave_no_leg_counted(watched: Scene) -> None:
    """Field report 51: load counters drift after failures, and routing with them."""
    engines = {engine.name: engine for engine in watched.engines}

    async def misbehave(request: web.BaseRequest, received: Received) -> web.StreamResponse | None:
        kind = len(received.raw) % 4
        if kind == 0:
            return error_response(500, "broken")
        if kind == 1:
            _abort(request)
        if kind == 2:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await response.write(chunk("a"))
            _abort(request)
            return response
        return None

    for name in ("d0", "d1", "p0"):
        engines[name].script = misbehave
        engines[name].grants_leases = False  # more leases at one engine would be a reason to prefer the other
    limit = asyncio.Semaphore(20)

    async def one(number: int) -> None:
        async with limit:
            with contextlib.suppress(aiohttp.ClientPayloadError):  # a stream that breaks off is what is asked for
                await status_of_turn(watched, "x" * (number % 97), stream=True)

    await asyncio.gather(*(one(number) for number in range(NUM_ROUNDS)))
    await eventually(lambda: watched.live.turns.num_active == 0, "no turn is left")
    assert {engine.name: engine.num_active for engine in watched.live.fleet} == {"p0": 0, "d0": 0, "d1": 0}
    for engine in engines.values():
        engine.script = None
        health_of(watched, engine.name).succeed()
    before = _num_served(engines)
    for number in range(20):
        assert await status_of_turn(watched, f"after {number}") == 200
    served = {name: count - before[name] for name, count in _num_served(engines).items()}
    assert served == {"p0": 20, "d0": 10, "d1": 10}


def _num_served(engines: dict[str, FakeEngine]) -> dict[str, int]:
    return {name: len(engine.received) for name, engine in engines.items()}


def _abort(request: web.BaseRequest) -> None:
    assert request.transport is not None
    request.transport.abort()
