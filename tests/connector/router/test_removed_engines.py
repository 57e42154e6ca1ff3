"""Engines that die, are removed, and come back at the same address: what sticks to them, and what doesn't.

Field report 55 (ai-dynamo/dynamo#11646, LMCache/LMCache#3448): affinity pinned sessions to a dead engine, and removing
one instance broke its twin. Field report 53 (vllm-project/production-stack#1055, #1061): a fleet without engines was a
crash.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from connector.protocol import Role
from tests.connector.router.conftest import MODEL, Scene, assistant, user
from tests.connector.router.fake_engine import FakeEngine
from tests.connector.router.waiting import eventually


class Twins:
    """Two decode engines of one model, each with a session of its own, one turn old."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.engines: list[FakeEngine] = []
        self.told: list[list[dict[str, Any]]] = [[], []]

    async def start(self) -> None:
        spare = await self.scene.add_engine("d1", Role.DECODE)
        await self.scene.publish()
        self.engines = [self.scene.decode, spare]
        for number in range(2):
            await self.go_on(number)
        await self.scene.until_leased(2)
        if not spare.received[0].body["messages"][0]["content"].startswith("session 1"):
            self.engines.reverse()
        assert [len(engine.received) for engine in self.engines] == [1, 1]

    async def go_on(self, number: int) -> str | None:
        """One turn of a session; the offer that P got."""
        told = self.told[number]
        told.append(user(f"session {number}, turn {len(told)}"))
        await self.scene.chat(told)
        told.append(assistant("Hello you"))
        return self.scene.prefill.received[-1].offer

    async def remove(self, engine: FakeEngine) -> None:
        self.scene.engines.remove(engine)
        await self.scene.publish()

    async def put_back(self, engine: FakeEngine) -> None:
        self.scene.engines.append(engine)
        await self.scene.publish()
        await self.scene.until_connected()

    @property
    def num_received(self) -> list[int]:
        return [len(engine.received) for engine in self.engines]


@pytest.fixture
async def twins(scene: Scene) -> AsyncIterator[Twins]:
    """All engines are stopped at the end, listed or not."""
    made = Twins(scene)
    await made.start()
    yield made
    scene.engines = [scene.prefill, *made.engines]


async def test_session_of_a_dead_engine_goes_elsewhere_in_one_try_and_stays_there(twins: Twins) -> None:
    dead, _ = twins.engines
    await dead.stop_serving()
    await twins.go_on(0)
    assert twins.num_received == [1, 2]
    assert twins.scene.metric('decode_retries_total{reason="connect"}') == 1
    await twins.scene.until_leased(3)
    for number in range(3):
        await twins.go_on(0)
        await twins.scene.until_leased(4 + number)
    assert twins.num_received == [1, 5]
    assert twins.scene.metric('decode_retries_total{reason="connect"}') == 1, "nobody dials the dead one again"


async def test_removed_engine_takes_its_leases_with_it_and_leaves_its_twin_alone(twins: Twins) -> None:
    removed, _ = twins.engines
    await twins.remove(removed)
    assert len(twins.scene.live.book) == 1
    assert await twins.go_on(0) is None
    assert await twins.go_on(1) is not None
    assert twins.num_received == [1, 3]


@pytest.mark.parametrize("name", ["the same name", "another name"])
async def test_engine_that_is_added_again_at_its_address_is_used_and_knows_no_one(twins: Twins, name: str) -> None:
    """It was started again meanwhile: a new incarnation without leases."""
    engine, _ = twins.engines
    await twins.remove(engine)
    await twins.go_on(0)
    await twins.scene.until_leased(2)
    engine.feed.leases.clear()
    engine.feed.incarnation = "again-2"
    if name == "another name":
        engine.name = engine.feed.engine_name = "d9"
    await twins.put_back(engine)
    offers = [await twins.go_on(0), await twins.go_on(1)]
    assert None not in offers
    assert twins.num_received[0] == 1, "sessions stay where their KV is"
    await twins.scene.chat([user("somebody new")])
    assert twins.num_received[0] == 2


async def test_engine_that_was_only_forgotten_brings_its_leases_back(twins: Twins) -> None:
    engine, _ = twins.engines
    await twins.remove(engine)
    await twins.put_back(engine)
    await twins.scene.until_leased(2)
    offer = await twins.go_on(0)
    assert offer is not None
    assert twins.num_received == [2, 1]


@pytest.mark.parametrize("removed", ["prefill", "decode", "both"])
@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
async def test_fleet_without_engines_of_a_role_answers_in_the_apis_shape(
    scene: Scene, removed: str, is_stream: bool
) -> None:
    """Without P, D computes alone; without D it is a 503."""
    scene.engines = [] if removed == "both" else [scene.decode if removed == "prefill" else scene.prefill]
    await scene.publish()
    scene_of_all = [scene.prefill, scene.decode]
    body = {"model": MODEL, "messages": [user("hi")], "stream": is_stream}
    async with scene.post("/v1/chat/completions", body) as response:
        status, answer = response.status, await response.read()
    scene.engines = scene_of_all
    if removed == "prefill":
        assert status == 200
    else:
        assert (status, json.loads(answer)["error"]["code"]) == (503, "no_engine_available")
    await scene.publish()
    await eventually(scene.live.fleet.models_served, "the engines are back")
    await scene.chat([user("hi")])
