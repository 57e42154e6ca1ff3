"""Each side goes and comes back in each order: every event arrives once, leases and policy converge."""

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable, Sequence

import pytest

from connector.agent.app import Agent
from connector.protocol import (
    AgentHello,
    AgentStatus,
    EngineState,
    LeaseSnapshot,
    PolicyAck,
    PolicyValues,
    SetPolicy,
    TransferRecorded,
)
from tests.connector.agent.conftest import RunAgent
from tests.connector.agent.disruptions import break_link, restart_engine
from tests.connector.agent.fake_control_plane import FakeControlPlane
from tests.connector.agent.fake_engine import FakeEngine
from tests.connector.agent.feed_client import FeedClient
from tests.connector.agent.samples import transfer
from tests.connector.agent.waiting import until

STEPS = ("control plane stops", "control plane starts", "engine restarts", "engine link breaks")


def assert_stored_once_in_order(control_plane: FakeControlPlane) -> None:
    """Sequences of each boot are 1, 2, 3 … without gap or repetition."""
    for boot, numbered in itertools.groupby(control_plane.stored, key=lambda item: item[0]):
        sequences = [event.sequence for _, event in numbered]
        assert sequences == list(range(1, len(sequences) + 1)), boot
    assert len({boot for boot, _ in control_plane.stored}) == len(
        [boot for boot, _ in itertools.groupby(control_plane.stored, key=lambda item: item[0])]
    )


def orders_in_which_a_start_follows_its_stop() -> list[tuple[str, ...]]:
    return [order for order in itertools.permutations(STEPS) if order.index(STEPS[0]) < order.index(STEPS[1])]


@pytest.mark.parametrize("order", orders_in_which_a_start_follows_its_stop(), ids=" → ".join)
async def test_events_are_stored_once_whatever_breaks_in_whatever_order(
    order: Sequence[str], agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane, router: FeedClient
) -> None:
    control_plane.policy = SetPolicy(revision=11, values=PolicyValues())
    sent: list[str] = []

    async def work() -> None:
        await until(lambda: agent.mirror.state is EngineState.READY and engine.is_connected)
        for number in range(20):
            sent.append(f"{len(sent)}-{number}")
            engine.happen(transfer(sent[-1]))
        # Sent is not yet received: an answered round trip says that the agent has them.
        num_pings = len(engine.received)
        await until(lambda: len(engine.received) >= num_pings + 2)

    actions: dict[str, Callable[[], Awaitable[None]]] = {
        "control plane stops": control_plane.stop,
        "control plane starts": control_plane.start,
        "engine restarts": functools.partial(restart_engine, engine, agent),
        "engine link breaks": functools.partial(break_link, engine),
    }
    await until(lambda: control_plane.is_connected)
    await work()
    for step in order:
        await actions[step]()
        await work()
    await until(lambda: agent.events.num_pending == 0)
    stored = [event.transfer_id for event in control_plane.events if isinstance(event, TransferRecorded)]
    assert stored == sent
    assert_stored_once_in_order(control_plane)
    assert agent.events.num_dropped == 0
    assert control_plane.num_foreign_batches == 0
    await until(lambda: engine.revision == 11 and router.incarnation == engine.incarnation)


async def test_batches_are_small_and_of_one_incarnation(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    await control_plane.stop()
    for number in range(1200):
        engine.happen(transfer(f"old-{number}"))
    await until(lambda: agent.events.num_pending == 1200)
    await restart_engine(engine, agent)
    await until(lambda: engine.is_connected and agent.mirror.state is EngineState.READY)
    engine.happen(transfer("new"))
    await until(lambda: agent.events.num_pending == 1201)
    await control_plane.start()
    await until(lambda: len(control_plane.stored) == 1201)
    assert max(len(batch.events) for batch in control_plane.batches) == 500
    last = control_plane.batches[-1]
    assert (last.incarnation, len(last.events)) == ("inc-2", 1)
    assert {batch.incarnation for batch in control_plane.batches[:-1]} == {"inc-1"}


async def test_uncommitted_batches_are_sent_again_and_stored_once(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    control_plane.commits = False
    await until(lambda: control_plane.is_connected and engine.is_connected)
    engine.happen(transfer("a"))
    await until(lambda: control_plane.batches)
    control_plane.commits = True
    control_plane.drop_connections()
    await until(lambda: agent.events.num_pending == 0)
    assert [len(batch.events) for batch in control_plane.batches] == [1, 1]
    assert_stored_once_in_order(control_plane)


async def test_commit_that_got_lost_is_learned_from_the_next_welcome(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    control_plane.commits = False
    await until(lambda: control_plane.is_connected and engine.is_connected)
    engine.happen(transfer("a"))
    await until(lambda: control_plane.batches)
    control_plane.store_without_answer(control_plane.batches[0])
    control_plane.drop_connections()
    await until(lambda: agent.events.num_pending == 0)
    assert len(control_plane.batches) == 1


async def test_age_of_an_event_covers_the_time_that_the_control_plane_was_away(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    await control_plane.stop()
    engine.happen(transfer("a", start_age_ms=1030.0), age_ms=1000.0)
    await until(lambda: agent.events.num_pending == 1)
    clock = asyncio.get_running_loop().time
    received_at = clock()
    await until(lambda: clock() - received_at > 0.2)
    await control_plane.start()
    await until(lambda: control_plane.stored)
    numbered = control_plane.stored[0][1]
    assert 1200.0 <= numbered.age_ms < 10_000.0
    assert isinstance(numbered.event, TransferRecorded)
    assert abs(numbered.event.start_age_ms - numbered.age_ms - 30.0) < 0.01


async def test_snapshot_follows_each_reconnect_of_the_control_plane_and_of_the_engine(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.of(LeaseSnapshot))
    engine.grant("a")
    await until(lambda: len(agent.leases) == 1)
    control_plane.received.clear()
    control_plane.drop_connections()
    await until(lambda: control_plane.of(LeaseSnapshot))
    assert [lease.lease_id for lease in control_plane.of(LeaseSnapshot)[0].leases] == ["a"]
    control_plane.received.clear()
    await break_link(engine)
    await until(lambda: control_plane.of(LeaseSnapshot))
    snapshot = control_plane.of(LeaseSnapshot)[-1]
    assert (snapshot.incarnation, len(snapshot.leases)) == ("inc-1", 1)


async def test_engine_facts_reach_a_control_plane_that_knew_none_before_any_event_of_it(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await engine.kill()
    async with run_agent() as agent:
        await until(lambda: control_plane.of(AgentStatus))
        assert control_plane.of(AgentHello)[0].engine is None
        assert control_plane.of(AgentStatus)[0].state is EngineState.DOWN
        await engine.start()
        await until(lambda: agent.mirror.state is EngineState.READY and engine.is_connected)
        engine.happen(transfer("a"))
        await until(lambda: control_plane.stored)
    with_facts = [status for status in control_plane.of(AgentStatus) if status.engine is not None]
    assert [status.incarnation for status in with_facts] == ["inc-2"]
    kinds = [type(message).__name__ for message in control_plane.received]
    assert control_plane.received.index(with_facts[0]) < kinds.index("LeaseSnapshot") < kinds.index("EventBatch")


async def test_new_engine_acks_the_policy_again(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    control_plane.policy = SetPolicy(revision=2, values=PolicyValues())
    control_plane.drop_connections()
    await until(lambda: control_plane.of(PolicyAck))
    await restart_engine(engine, agent)
    await until(lambda: len(control_plane.of(PolicyAck)) >= 2)
