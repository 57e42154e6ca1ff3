"""An engine that drains: its sessions move away with their KV, and what it held for them is let go."""

import asyncio
import math

import pytest
from aiohttp import web

from connector.protocol import LeaseExtended, LeaseRenewed, Role
from tests.connector.router.conftest import MODEL, Scene, assistant, user
from tests.connector.router.fake_engine import FakeEngine, Received, lease_offer
from tests.connector.router.waiting import eventually


class Move:
    """A session of one turn whose holder drains, and the engine that it will go on at."""

    def __init__(self, scene: Scene, holder: FakeEngine, other: FakeEngine) -> None:
        self.scene = scene
        self.holder = holder
        self.other = other
        envelope = holder.received[0].envelope
        assert envelope is not None
        self.lease_id = f"lease-{envelope.turn_id}"
        self.next = [user("hi"), assistant("Hello you"), user("on")]

    @property
    def released(self) -> list[tuple[str, str]]:
        return [(release.key, release.reason) for release in self.holder.feed.releases]


@pytest.fixture
async def move(scene: Scene) -> Move:
    spare = await scene.add_engine("d1", Role.DECODE)
    await scene.publish()
    await scene.chat([user("hi")])
    await scene.until_leased(1)
    holder, other = (scene.decode, spare) if scene.decode.received else (spare, scene.decode)
    scene.draining.add(holder.name)
    await scene.publish()
    return Move(scene, holder, other)


async def test_session_goes_on_elsewhere_with_its_kv_and_the_old_lease_is_released(move: Move) -> None:
    await move.scene.chat(move.next)
    assert len(move.other.received) == 1
    assert move.scene.prefill.received[-1].offer is not None, "P may still pull from it"
    await eventually(lambda: move.released == [(move.lease_id, "drained")], "the lease is let go")
    await eventually(lambda: not move.holder.feed.leases, "nothing is held there")
    await move.scene.chat([*move.next, assistant("Hello you"), user("further")])
    assert len(move.other.received) == 2
    assert len(move.holder.received) == 1
    assert move.released == [(move.lease_id, "drained")]


async def test_turn_that_fails_leaves_the_old_lease_for_the_retry(move: Move) -> None:
    async def refuse(request: web.BaseRequest, received: Received) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    move.other.script = refuse
    async with move.scene.post("/v1/chat/completions", {"model": MODEL, "messages": move.next}) as response:
        assert response.status == 502
    assert move.lease_id in move.holder.feed.leases
    move.other.script = None
    await move.scene.chat(move.next)
    assert move.scene.prefill.received[-1].offer is not None
    await eventually(lambda: (move.lease_id, "drained") in move.released, "the lease is let go")


async def test_pinned_lease_stays_its_operators(move: Move) -> None:
    envelope = move.holder.received[0].envelope
    assert envelope is not None
    pinned = LeaseExtended(lease_id=move.lease_id, remaining_seconds=480, pinned=True)
    await move.holder.feed.push(LeaseRenewed(lease=pinned, offer=lease_offer(envelope).offer))
    known = move.scene.live.index.get(envelope.turn_id)
    assert known is not None
    await eventually(lambda: math.isinf(known.deadline), "the pin is known")
    await move.scene.chat(move.next)
    await move.scene.until_leased(2)
    assert move.released == []


async def test_undrained_engine_is_taken_again_and_keeps_its_leases(move: Move) -> None:
    move.scene.draining.clear()
    await move.scene.publish()
    await move.scene.chat(move.next)
    assert len(move.holder.received) == 2
    await move.scene.until_leased(2)
    assert move.released == []


async def test_legs_that_run_when_the_drain_begins_end_there(scene: Scene) -> None:
    gate = asyncio.Event()

    async def hold(request: web.BaseRequest, received: Received) -> web.StreamResponse | None:
        await gate.wait()
        return None

    scene.decode.script = hold
    asking = asyncio.create_task(scene.chat([user("hi")]))
    await eventually(lambda: scene.decode.received, "the turn decodes")
    await scene.add_engine("d1", Role.DECODE)
    scene.draining.add("d0")
    await scene.publish()
    gate.set()
    assert b"Hello you" in await asking
