"""Leases on their way from the engine to control plane and routers, across everything that breaks in between."""

import pytest

from connector.agent.app import Agent
from connector.protocol import (
    EngineEvent,
    EngineState,
    LeaseEnded,
    LeaseGranted,
    LeaseOffer,
    LeaseSnapshot,
    LeaseState,
)
from tests.connector.agent.conftest import RunAgent
from tests.connector.agent.disruptions import break_link, restart_engine
from tests.connector.agent.fake_control_plane import FakeControlPlane
from tests.connector.agent.fake_engine import FakeEngine
from tests.connector.agent.feed_client import FeedClient
from tests.connector.agent.samples import offer
from tests.connector.agent.waiting import until


async def test_leases_of_a_restarted_engine_are_lost_and_said_under_the_old_incarnation(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane, router: FeedClient
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    engine.grant("a")
    await until(lambda: router.leases)
    await restart_engine(engine, agent)
    await until(lambda: agent.events.num_pending == 0 and router.incarnation == "inc-2")
    ended = [event for event in control_plane.events if isinstance(event, LeaseEnded)]
    assert [(event.lease_id, event.state) for event in ended] == [("a", LeaseState.LOST)]
    assert control_plane.batches[-1].incarnation == "inc-1"
    assert router.leases == {}


async def test_leases_of_a_dead_engine_are_lost_before_any_other_takes_its_place(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane, router: FeedClient
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    engine.grant("a")
    await until(lambda: router.leases)
    await engine.kill()
    await until(lambda: not router.leases)
    await until(lambda: any(isinstance(event, LeaseEnded) for event in control_plane.events))
    await until(lambda: control_plane.shows(state=EngineState.DOWN))


async def test_broken_link_to_a_living_engine_loses_no_lease(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane, router: FeedClient
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    engine.grant("a")
    engine.grant("b")
    await until(lambda: len(router.leases) == 2)
    engine.leases.pop("b")
    await break_link(engine)
    await until(lambda: list(router.leases) == ["a"])
    await until(lambda: agent.events.num_pending == 0)
    assert not [event for event in control_plane.events if isinstance(event, LeaseEnded)]
    unseen = [change for change in router.changes if isinstance(change, LeaseEnded)]
    assert [(ended.lease_id, ended.state, ended.reason) for ended in unseen] == [("b", LeaseState.RELEASED, "unseen")]


async def test_lease_list_ends_with_the_first_pong_when_the_engine_announced_too_many(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    engine.announces_too_many = 3
    async with run_agent():
        await until(lambda: control_plane.of(LeaseSnapshot))
    assert control_plane.of(LeaseSnapshot)[0].leases == ()


async def test_live_grants_extensions_and_ends_become_events(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.of(LeaseSnapshot))
    granted = engine.grant("a")
    engine.send(granted)
    engine.end("a")
    await until(lambda: len(control_plane.events) == 2)
    assert control_plane.events[0] == granted.lease
    assert isinstance(control_plane.events[0], LeaseGranted)
    assert isinstance(control_plane.events[1], LeaseEnded)


async def test_offer_that_the_engine_lists_and_also_kept_for_its_agent_counts_once(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane, router: FeedClient
) -> None:
    await until(lambda: control_plane.of(LeaseSnapshot) and router.snapshot is not None)
    engine.grant("a", remaining_seconds=100.0)
    engine.send(offer("a", remaining_seconds=480.0))
    engine.grant("b")
    await until(lambda: len(router.leases) == 2)
    assert [change.lease.lease_id for change in router.changes if isinstance(change, LeaseOffer)] == ["a", "b"]
    assert all(held.lease.remaining_seconds < 101.0 for held in agent.leases.offers() if held.lease.lease_id == "a")


@pytest.mark.parametrize("num_announced", [1, 2], ids=["told by a snapshot", "told by an event"])
async def test_lease_that_came_and_went_while_the_link_was_down_is_told_whole(
    num_announced: int, agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.of(LeaseSnapshot))
    engine.announces_too_many = num_announced
    engine.kept = [
        offer("brief"),
        EngineEvent(age_ms=5.0, event=LeaseEnded(lease_id="brief", state=LeaseState.EXPIRED, reason="ttl")),
    ]
    await break_link(engine)
    await until(lambda: any(isinstance(event, LeaseEnded) for event in control_plane.events))
    granted = [event for event in control_plane.events if isinstance(event, LeaseGranted)]
    listed = [lease for snapshot in control_plane.of(LeaseSnapshot) for lease in snapshot.leases]
    assert [lease.lease_id for lease in (*granted, *listed)] == ["brief"]
    assert isinstance(control_plane.events[-1], LeaseEnded)
    assert len(agent.leases) == 0
