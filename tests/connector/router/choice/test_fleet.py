"""Several engines of each role behind one router: who serves which turn, and what becomes of it when engines go."""

import asyncio
from collections import Counter
from itertools import permutations
from typing import Any

import pytest

from connector.protocol import EngineLoad, LoadChanged, Role
from tests.connector.router.conftest import Scene, assistant, user
from tests.connector.router.fake_engine import FakeEngine, Received
from tests.connector.router.test_fields import CHAT, COMPLETIONS, LEAST, MESSAGES, MODEL, RESPONSES
from tests.connector.router.waiting import eventually

LONG = {"role": "system", "content": "Know this. " * 800}


@pytest.fixture
async def several(scene: Scene) -> Scene:
    """Two prefill and four decode engines."""
    await scene.add_engine("p1", Role.PREFILL)
    for number in range(1, 4):
        await scene.add_engine(f"d{number}", Role.DECODE)
    await scene.publish()
    await scene.until_connected()
    return scene


def of(scene: Scene, role: Role) -> list[FakeEngine]:
    return [engine for engine in scene.engines if engine.role is role]


def named(scene: Scene, name: str) -> FakeEngine:
    return next(engine for engine in scene.engines if engine.name == name)


def server_of(scene: Scene, turn_id: str, role: Role = Role.DECODE) -> str:
    """The engine that got this turn's leg last."""
    for engine in of(scene, role):
        if any(leg.headers["X-Request-Id"] == turn_id for leg in engine.received):
            return engine.name
    raise AssertionError(f"nobody got {turn_id}")


def prefill_leg(scene: Scene, turn_id: str) -> Received:
    legs = [leg for engine in of(scene, Role.PREFILL) for leg in engine.received]
    return next(leg for leg in legs if leg.headers["X-Request-Id"] == turn_id)


async def turn(scene: Scene, messages: list[dict[str, Any]], **fields: Any) -> str:
    """A served turn whose lease is known; its id."""
    body = {"model": MODEL, "messages": messages, **fields}
    async with scene.post(CHAT, body) as response:
        assert response.status == 200, await response.read()
        turn_id: str = response.headers["X-Request-Id"]
        await response.read()
    known = scene.live.index
    await eventually(lambda: (t := known.get(turn_id)) and t.lease, "its lease is known")
    return turn_id


async def only(scene: Scene, name: str) -> None:
    """Of the decode engines just this one takes new turns."""
    scene.draining = {engine.name for engine in of(scene, Role.DECODE)} - {name}
    await scene.publish()


@pytest.mark.parametrize("order", list(permutations((1, 3, 2))))
async def test_longest_match_is_offered_whichever_was_known_first(several: Scene, order: tuple[int, ...]) -> None:
    """Field report 53 (vllm-project/production-stack#1055, #1061)."""
    history: list[dict[str, Any]] = [LONG]
    prompts = {}
    for length in (1, 2, 3):
        history = [*history, user(f"question {length}")]
        prompts[length] = history
        history = [*history, assistant("Hello you")]
    turns = {}
    for length in order:
        await only(several, f"d{length}")
        turns[length] = await turn(several, prompts[length], conversation_id=f"client {length}")
    await only(several, "d0")
    several.draining.clear()
    await several.publish()
    last = await turn(several, [*history, user("and now?")], conversation_id="another client")
    assert prefill_leg(several, last).offer == f"d-offer-{turns[3]}"


async def test_no_engine_is_a_503_in_the_apis_shape_and_one_that_returns_serves(several: Scene) -> None:
    """Field report 53: nothing to choose from is no crash."""
    engines, several.engines[:] = list(several.engines), []
    await several.publish()
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        async with several.post(path, {"model": MODEL, **LEAST[path]}) as response:
            assert response.status in (404, 503)
            assert (await response.json())["error"]["message"]
    several.engines[:] = engines
    await several.publish()
    await turn(several, [user("hi")])


async def test_dead_holder_costs_one_try_and_its_conversation_stays_where_it_went(several: Scene) -> None:
    """Field report 55 (ai-dynamo/dynamo#11646, LMCache/LMCache#3448)."""
    messages = [LONG, user("one")]
    holder = named(several, server_of(several, await turn(several, messages)))
    await holder.stop_serving()
    homes = []
    for number in range(4):
        messages = [*messages, assistant("Hello you"), user(f"more {number}")]
        homes.append(server_of(several, await turn(several, messages)))
    assert holder.name not in homes
    assert len(set(homes)) == 1
    assert several.metric('decode_retries_total{reason="connect"}') == 1


async def test_every_session_of_a_dead_engine_goes_on_elsewhere_and_spread(several: Scene) -> None:
    """Field report 55: not one request fails, and the survivors share what it had."""
    talks = [[{"role": "system", "content": f"talk {n} " * 50}, user("one")] for n in range(12)]
    homes = [server_of(several, await turn(several, messages)) for messages in talks]
    assert Counter(homes) == {"d0": 3, "d1": 3, "d2": 3, "d3": 3}
    await named(several, "d2").stop_serving()
    again = [server_of(several, await turn(several, [*m, assistant("Hello you"), user("two")])) for m in talks]
    for before, after in zip(homes, again, strict=True):
        assert after == before if before != "d2" else after != "d2"
    assert several.metric('decode_retries_total{reason="connect"}') == 1


async def test_removed_twin_takes_its_offers_along_and_may_come_back(several: Scene) -> None:
    """Field report 55: two engines serve one model; one goes, the other stays as it is."""
    mine, other = [LONG, user("mine")], [{"role": "system", "content": "Other. " * 200}, user("other")]
    gone = named(several, server_of(several, await turn(several, mine)))
    twin_turn = await turn(several, other)
    twin = server_of(several, twin_turn)
    assert twin != gone.name
    several.engines.remove(gone)
    await several.publish()
    other = [*other, assistant("Hello you"), user("still there?")]
    second = await turn(several, other)
    assert prefill_leg(several, second).offer == f"d-offer-{twin_turn}"
    assert server_of(several, second) == twin
    mine = [*mine, assistant("Hello you"), user("where now?")]
    moved = await turn(several, mine)
    assert prefill_leg(several, moved).offer is None
    home = server_of(several, moved)
    gone.feed.leases.clear()
    several.engines.append(gone)
    await several.publish()
    await several.until_connected()
    mine = [*mine, assistant("Hello you"), user("and now?")]
    third = await turn(several, mine)
    assert prefill_leg(several, third).offer == f"d-offer-{moved}"
    assert server_of(several, third) == home


@pytest.mark.parametrize("key", [{"conversation_id": "agent"}, {}], ids=["keyed", "without a key"])
async def test_history_that_is_compacted_each_turn_stays_at_its_engine_and_piles_nothing_up(
    several: Scene, key: dict[str, str]
) -> None:
    """Field report 59 (defilantech/LLMKube#1286, yologdev/yoagent#99, open-webui/open-webui#27037)."""
    messages: list[dict[str, Any]] = [LONG]
    homes, held = [], []
    for number in range(20):
        if number >= 10:
            del messages[1:3]
        messages.append(user(f"question {number}"))
        turn_id = await turn(several, messages, **key)
        messages.append(assistant(f"answer {number}"))
        homes.append(server_of(several, turn_id))
        engine = named(several, homes[-1])
        leg = next(one for one in engine.received if one.headers["X-Request-Id"] == turn_id)
        assert leg.envelope is not None
        for lease_id in leg.envelope.replaces:
            await engine.feed.end(lease_id)
        held.append(len(engine.feed.leases))
    assert len(set(homes)) == 1
    assert max(held[10:]) <= held[9] + 1, "leases of the dead history are let go as it dies"


RANK_HEADERS = ("X-data-parallel-rank", "x-data-parallel-rank", "X-DATA-PARALLEL-RANK")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
@pytest.mark.parametrize("header", RANK_HEADERS)
async def test_rank_never_crosses_legs_in_any_api(several: Scene, path: str, header: str) -> None:
    """Field report 49 (ai-dynamo/dynamo#9936, sgl-project/sglang#29725): two prefill ranks, four decode ranks."""
    ranks = {"data_parallel_rank": 1, "vllm_xargs": {"data_parallel_rank": 2}}
    for _ in range(4):
        async with several.post(path, {"model": MODEL, **LEAST[path], **ranks}, **{header: "3"}) as response:
            assert response.status == 200
            await response.read()
    legs = [leg for engine in several.engines for leg in engine.received]
    assert len(legs) == 8
    for leg in legs:
        assert "x-data-parallel-rank" not in {name.lower() for name in leg.headers}
        assert b"data_parallel_rank" not in leg.raw
    assert Counter(len(engine.received) for engine in of(several, Role.DECODE)) == {1: 4}


async def test_offer_names_its_rank_and_nothing_of_prefills_is_told_to_decode(several: Scene) -> None:
    """Field report 49: turn 1 ends on one decode rank, turn 2 is prefilled by any; params are the offer's alone."""
    messages = [LONG, user("one")]
    first = await turn(several, messages)
    rank = named(several, server_of(several, first))
    second = await turn(several, [*messages, assistant("Hello you"), user("two")])
    assert prefill_leg(several, second).offer == f"d-offer-{first}"
    leg = next(leg for leg in rank.received if leg.headers["X-Request-Id"] == second)
    params = leg.body["kv_transfer_params"]
    assert params["backhaul"]["offer"] == f"p-offer-{second}"
    given = {name for name, value in params.items() if value is not None}
    assert given == {"do_remote_decode", "do_remote_prefill", "backhaul"}


async def test_each_rank_has_its_own_health(several: Scene) -> None:
    """Field report 49: one rank that is gone says nothing of its siblings."""
    await named(several, "d3").stop_serving()
    await named(several, "p1").stop_serving()
    for number in range(8):
        await turn(several, [user(f"hello {number}")])
    ejected = {engine.name for engine in several.live.fleet if not engine.health.is_closed}
    assert ejected == {"d3", "p1"}


async def test_cold_turns_at_once_spread_over_all_engines(several: Scene) -> None:
    """They share a system prompt that one engine holds already."""
    await turn(several, [LONG, user("first")])
    for engine in several.engines:
        engine.received.clear()
    arrived = asyncio.Event()

    async def hold() -> None:
        await arrived.wait()

    for engine in of(several, Role.DECODE):
        engine.gate = hold

    async def one(number: int) -> None:
        await several.chat([LONG, user(f"cold {number}")], stream=True)

    turns = [asyncio.create_task(one(number)) for number in range(40)]
    await eventually(lambda: sum(len(e.received) for e in of(several, Role.DECODE)) == 40, "all are at decode")
    arrived.set()
    await asyncio.gather(*turns)
    counts = [len(engine.received) for engine in of(several, Role.DECODE)]
    assert max(counts) - min(counts) <= 4, counts
    counts = [len(engine.received) for engine in of(several, Role.PREFILL)]
    assert max(counts) - min(counts) <= 8, counts
    assert [engine.num_active for engine in several.live.fleet] == [0] * 6


async def test_shared_system_prompt_does_not_gather_idle_sessions_at_one_engine(several: Scene) -> None:
    homes = [server_of(several, await turn(several, [LONG, user(f"session {n}")])) for n in range(24)]
    assert max(Counter(homes).values()) <= 10, Counter(homes)
    assert len(Counter(homes)) == 4


def load(**facts: int) -> LoadChanged:
    names = ("num_leases", "num_leased_blocks", "num_quarantined_blocks", "num_running", "num_waiting")
    given = dict.fromkeys((*names, "num_dropped_events"), 0) | {"num_blocks": 1000, "num_free_blocks": 1000} | facts
    return LoadChanged(load=EngineLoad(**given))  # type: ignore[arg-type]


async def test_overloaded_holder_is_left_and_its_kv_pulled_from_it(several: Scene) -> None:
    messages = [LONG, user("one")]
    first = await turn(several, messages)
    holder = named(several, server_of(several, first))
    await holder.feed.push(load(num_running=40, num_waiting=20))
    engine = several.live.fleet.get(holder.name)
    assert engine is not None
    await eventually(lambda: engine.num_foreign == 60, "its load is known")
    second = await turn(several, [*messages, assistant("Hello you"), user("two")])
    assert server_of(several, second) != holder.name
    assert prefill_leg(several, second).offer == f"d-offer-{first}"


async def test_busy_holder_that_is_not_clearly_dearer_is_kept(several: Scene) -> None:
    messages = [LONG, user("one")]
    holder = named(several, server_of(several, await turn(several, messages)))
    await holder.feed.push(load(num_running=3))
    engine = several.live.fleet.get(holder.name)
    assert engine is not None
    await eventually(lambda: engine.num_foreign == 3, "its load is known")
    assert server_of(several, await turn(several, [*messages, assistant("Hello you"), user("two")])) == holder.name
