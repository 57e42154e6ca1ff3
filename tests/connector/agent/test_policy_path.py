"""Policy from the control plane through the disk to the engine, and the engine's word back."""

import stat

from connector.agent.app import Agent
from connector.agent.environment import Options
from connector.protocol import AgentHello, EngineState, PolicyAck, PolicyValues, SetPolicy
from tests.connector.agent.conftest import RunAgent
from tests.connector.agent.fake_control_plane import FakeControlPlane
from tests.connector.agent.fake_engine import FakeEngine
from tests.connector.agent.waiting import until


def policy(revision: int, threshold: int = 64) -> SetPolicy:
    return SetPolicy(revision=revision, values=PolicyValues(kv_recompute_threshold=threshold))


def acked_revisions(control_plane: FakeControlPlane) -> list[int]:
    return [ack.revision for ack in control_plane.of(PolicyAck)]


async def test_pushed_policy_is_acked_with_the_values_that_the_engine_read_back(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    await control_plane.push(policy(7, threshold=96))
    await until(lambda: control_plane.of(PolicyAck))
    ack = control_plane.of(PolicyAck)[0]
    assert (ack.enforcer, ack.revision, ack.values.kv_recompute_threshold) == ("d0", 7, 96)
    assert engine.revision == 7


async def test_stored_policy_is_private_and_reaches_an_engine_before_the_control_plane_is_there(
    run_agent: RunAgent, options: Options, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    control_plane.policy = policy(5, threshold=128)
    async with run_agent():
        await until(lambda: engine.revision == 5)
    assert stat.S_IMODE((options.state_dir / "policy.json").stat().st_mode) == 0o600
    await control_plane.stop()
    await engine.kill()
    await engine.start()
    async with run_agent():
        await until(lambda: engine.revision == 5)
        assert engine.of(SetPolicy)[-1] == policy(5, threshold=128)


async def test_restarted_engine_gets_the_policy_as_the_first_message_after_its_hello(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    await control_plane.push(policy(3))
    await until(lambda: engine.revision == 3)
    await engine.kill()
    engine.received.clear()
    await engine.start()
    await until(lambda: engine.received)
    assert engine.received[0] == policy(3)
    await until(lambda: acked_revisions(control_plane) == [3, 3])


async def test_frozen_engine_acks_nothing_until_it_wakes(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    engine.freeze()
    await control_plane.push(policy(9))
    await until(lambda: agent.mirror.state is EngineState.STALLED)
    assert acked_revisions(control_plane) == []
    engine.thaw()
    await until(lambda: acked_revisions(control_plane) == [9])
    await until(lambda: agent.mirror.state is EngineState.READY)


async def test_policy_pushed_while_the_engine_is_down_is_acked_when_it_comes(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    await engine.kill()
    await until(lambda: agent.mirror.state is EngineState.DOWN)
    await control_plane.push(policy(4))
    await until(lambda: agent.policy.wanted == policy(4))
    await engine.start()
    await until(lambda: acked_revisions(control_plane))
    assert set(acked_revisions(control_plane)) == {4}


async def test_late_lower_revision_of_one_connection_is_ignored_but_a_reconnect_may_lower_it(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    await control_plane.push(policy(8))
    await control_plane.push(policy(6))
    await control_plane.push(policy(9))
    await until(lambda: engine.revision == 9)
    assert [message.revision for message in engine.of(SetPolicy)] == [8, 9]
    control_plane.policy = policy(2)
    control_plane.drop_connections()
    await until(lambda: engine.revision == 2)
    await until(lambda: acked_revisions(control_plane)[-1] == 2)


async def test_message_that_the_agent_does_not_know_or_that_is_invalid_is_skipped(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    await control_plane.push_text('{"type": "FromTheFuture", "x": 1}')
    await control_plane.push_text('{"type": "SetPolicy", "revision": 1, "values": {"decoder_kv_blocks_ttl": 5}}')
    await control_plane.push_text("not json")
    await control_plane.push(policy(3))
    await until(lambda: acked_revisions(control_plane) == [3])
    assert len(control_plane.of(AgentHello)) == 1
