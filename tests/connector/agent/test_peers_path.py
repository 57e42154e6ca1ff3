"""The list of peers from the control plane through the disk to engines that understand it; both ways of skew."""

import stat

import pytest

from connector.agent import app
from connector.agent.app import Agent
from connector.agent.environment import Options
from connector.protocol import (
    AgentHello,
    Command,
    CommandDone,
    Peer,
    PolicyAck,
    PolicyValues,
    ResetCache,
    SetPeers,
    SetPolicy,
)
from tests.connector.agent.conftest import RunAgent
from tests.connector.agent.fake_control_plane import FakeControlPlane
from tests.connector.agent.fake_engine import FakeEngine
from tests.connector.agent.waiting import until

LIST = SetPeers(peers=(Peer(name="p0", incarnation="boot-2", former=("boot-1",)), Peer(name="d0")))
NEWER = SetPeers(peers=(Peer(name="p1"),))
POLICY = SetPolicy(revision=7, values=PolicyValues())


async def test_a_list_reaches_the_engine_and_a_newer_one_replaces_it(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    await control_plane.push(LIST)
    await control_plane.push(NEWER)
    await until(lambda: engine.of(SetPeers) == [LIST, NEWER])
    assert agent.health().num_peers == 1


async def test_no_list_is_told_as_none(agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    await control_plane.push(SetPeers(peers=None))
    await until(lambda: engine.of(SetPeers) == [SetPeers(peers=None)])
    assert agent.health().num_peers is None


async def test_a_starting_engine_knows_its_peers_before_its_policy_lets_it_go_on(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    await control_plane.push(LIST)
    await control_plane.push(POLICY)
    await until(lambda: engine.revision == 7)
    await engine.kill()
    engine.received.clear()
    await engine.start()
    await until(lambda: engine.revision == 7)
    assert engine.received[:2] == [LIST, POLICY]


async def test_the_last_list_outlives_the_agent_while_the_control_plane_is_away(
    run_agent: RunAgent, options: Options, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    control_plane.peers, control_plane.policy = LIST, POLICY
    async with run_agent():
        await until(lambda: engine.revision == 7 and engine.of(SetPeers))
    assert stat.S_IMODE((options.state_dir / "peers.json").stat().st_mode) == 0o600
    await control_plane.stop()
    await engine.kill()
    engine.received.clear()
    await engine.start()
    async with run_agent():
        await until(lambda: engine.revision == 7)
        assert engine.of(SetPeers) == [LIST]


async def test_an_unreadable_list_on_disk_is_no_list(
    run_agent: RunAgent, options: Options, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    options.state_dir.mkdir(mode=0o700)
    (options.state_dir / "peers.json").write_text("{")
    control_plane.policy = POLICY
    async with run_agent():
        await until(lambda: engine.revision == 7)
        assert engine.of(SetPeers) == []


# ---------------------------------------------------------------- one version of skew, both ways


async def test_an_engine_of_the_version_before_is_not_sent_what_it_would_take_for_garbage(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    engine.protocol = 1
    control_plane.peers = LIST
    async with run_agent():
        await until(lambda: control_plane.is_connected and engine.is_connected)
        await control_plane.push(NEWER)
        await control_plane.push(POLICY)
        await until(lambda: engine.revision == 7)
        assert engine.of(SetPeers) == []
        assert engine.num_connections == 1
        engine.protocol = 2
        await engine.kill()
        await engine.start()
        await until(lambda: engine.of(SetPeers) == [NEWER])


async def test_a_command_that_an_older_engine_does_not_know_is_refused_by_its_agent(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    engine.protocol = 1
    async with run_agent():
        await until(lambda: control_plane.is_connected and engine.is_connected)
        await control_plane.push(Command(deadline_seconds=5.0, body=ResetCache(command_id="c1")))
        await until(lambda: bool(control_plane.of(CommandDone)))
    assert control_plane.of(CommandDone)[0].outcome == "failed"
    assert engine.of(ResetCache) == []
    assert engine.num_connections == 1


async def test_a_control_plane_of_the_version_before_sends_no_list_and_all_else_works(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    control_plane.protocol, control_plane.policy = 1, POLICY
    async with run_agent():
        await until(lambda: bool(control_plane.of(PolicyAck)))
    assert engine.of(SetPeers) == []
    assert control_plane.of(AgentHello)[0].protocol == 2


# ---------------------------------------------------------------- which policy a starting engine gets first


async def test_an_agent_that_starts_asks_the_control_plane_before_it_goes_by_its_disk(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    control_plane.policy = POLICY
    async with run_agent():
        await until(lambda: engine.revision == 7)
    newer = SetPolicy(revision=8, values=PolicyValues())
    control_plane.policy = newer
    await engine.kill()
    engine.received.clear()
    await engine.start()
    async with run_agent():
        await until(lambda: engine.revision == 8)
    assert engine.of(SetPolicy) == [newer]


async def test_an_engine_that_is_not_approved_gets_the_disks_word(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    control_plane.policy = POLICY
    async with run_agent():
        await until(lambda: engine.revision == 7)
    control_plane.approved = False
    await engine.kill()
    await engine.start()
    async with run_agent():
        await until(lambda: engine.revision == 7)


async def test_a_control_plane_that_says_nothing_is_not_waited_for_long(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    control_plane.policy = POLICY
    async with run_agent():
        await until(lambda: engine.revision == 7)
    monkeypatch.setattr(app, "FIRST_POLICY_SECONDS", 0.05)
    control_plane.policy = None
    await engine.kill()
    await engine.start()
    async with run_agent():
        await until(lambda: engine.revision == 7)
        assert control_plane.is_connected
