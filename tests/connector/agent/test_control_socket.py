"""The agent's door to the control plane: tokens, refusals, approval, commands, and a peer that hangs."""

import asyncio
import itertools
import logging

import msgspec
import pytest

from connector.agent.app import Agent
from connector.agent.control_socket import ControlTiming
from connector.protocol import (
    AgentHello,
    AgentStatus,
    Command,
    CommandDone,
    EngineState,
    EventBatch,
    ExtendLease,
    LeaseExtended,
    ReleaseLease,
)
from tests.connector.agent.conftest import FAST, RunAgent
from tests.connector.agent.fake_control_plane import FakeControlPlane
from tests.connector.agent.fake_engine import FakeEngine
from tests.connector.agent.samples import transfer
from tests.connector.agent.waiting import until


def release(command_id: str, key: str, deadline_seconds: float = 5.0) -> Command:
    return Command(deadline_seconds=deadline_seconds, body=ReleaseLease(command_id=command_id, key=key))


async def test_hello_says_how_routers_reach_engine_and_feed(agent: Agent, control_plane: FakeControlPlane) -> None:
    await until(lambda: control_plane.of(AgentHello))
    hello = control_plane.of(AgentHello)[0]
    assert hello.engine_name == "d0"
    assert hello.engine_url == "http://127.0.0.1:8200"
    assert hello.feed_url == f"ws://127.0.0.1:{agent.feed_port}/feed"
    assert hello.boot == agent.boot


async def test_wrong_token_is_logged_once_and_tried_again_until_it_is_enrolled(
    run_agent: RunAgent, control_plane: FakeControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    enrolled, control_plane.token = control_plane.token, "another"
    with caplog.at_level(logging.ERROR):
        async with run_agent() as agent:
            await until(lambda: control_plane.num_refused_handshakes >= 3)
            complaints = [record for record in caplog.records if "token is refused (HTTP 403)" in record.getMessage()]
            assert len(complaints) == 1
            assert not agent.control.is_connected
            control_plane.token = enrolled
            await until(lambda: agent.control.is_connected)
    assert enrolled not in caplog.text


async def test_refused_hello_is_logged_with_its_reason_and_tried_again(
    run_agent: RunAgent, control_plane: FakeControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    control_plane.refusal = "protocol too old"
    async with run_agent() as agent:
        await until(lambda: len(control_plane.of(AgentHello)) >= 3)
        assert caplog.text.count("refused: protocol too old") == 1
        control_plane.refusal = None
        await until(lambda: agent.control.is_connected)


async def test_control_plane_of_a_distant_protocol_is_left(
    run_agent: RunAgent, control_plane: FakeControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    control_plane.protocol = 99
    async with run_agent() as agent:
        await until(lambda: len(control_plane.of(AgentHello)) >= 2)
        assert not agent.control.is_connected
    assert "speaks protocol 99" in caplog.text


async def test_events_of_an_unapproved_engine_wait_for_its_approval(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    control_plane.approved = False
    async with run_agent() as agent:
        await until(lambda: engine.is_connected and control_plane.of(AgentStatus))
        engine.happen(transfer("a"))
        await until(lambda: control_plane.shows(num_pending_events=1))
        num_statuses = len(control_plane.of(AgentStatus))
        await until(lambda: len(control_plane.of(AgentStatus)) > num_statuses + 1)
        assert control_plane.of(EventBatch) == []
        control_plane.approved = True
        control_plane.drop_connections()
        await until(lambda: agent.events.num_pending == 0)
    assert len(control_plane.stored) == 1


async def test_status_beats_and_follows_a_change_at_once(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: len(control_plane.of(AgentStatus)) >= 3)
    await until(lambda: control_plane.shows(load=engine.load))
    await engine.kill()
    await until(lambda: control_plane.shows(state=EngineState.DOWN))
    assert control_plane.of(AgentStatus)[-1].load is None


async def test_control_plane_that_commits_nothing_is_left(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    control_plane.commits = False
    timing = ControlTiming(first_retry=0.01, longest_retry=0.05, commit_timeout=0.2)
    async with run_agent(msgspec.structs.replace(FAST, control=timing)) as agent:
        await until(lambda: engine.is_connected and agent.control.is_connected)
        engine.happen(transfer("a"))
        await until(lambda: len(control_plane.of(AgentHello)) >= 2)
        control_plane.commits = True
        await until(lambda: agent.events.num_pending == 0)
    assert len(control_plane.stored) == 1


async def test_handshake_that_is_never_answered_is_given_up(
    run_agent: RunAgent, control_plane: FakeControlPlane
) -> None:
    await control_plane.stop()
    num_accepted = 0

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_accepted
        num_accepted += 1
        await hung.wait()
        writer.close()

    hung = asyncio.Event()
    server = await asyncio.start_server(hang, "127.0.0.1", control_plane.port)
    timing = ControlTiming(handshake=0.1, first_retry=0.01, longest_retry=0.05)
    async with run_agent(msgspec.structs.replace(FAST, control=timing)) as agent:
        await until(lambda: num_accepted >= 2)
        hung.set()
        server.close()
        await server.wait_closed()
        await control_plane.start()
        await until(lambda: agent.control.is_connected)


async def test_command_is_run_at_the_engine_and_answered(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    engine.grant("a")
    await until(lambda: len(agent.leases) == 1)
    body = ExtendLease(command_id="c1", lease_id="a", ttl_seconds=900.0, pinned=True)
    await control_plane.push(Command(deadline_seconds=5.0, body=body))
    await control_plane.push(release("c2", "a"))
    await control_plane.push(release("c3", "unknown"))
    await until(lambda: len(control_plane.of(CommandDone)) == 3)
    outcomes = {done.command_id: done.outcome for done in control_plane.of(CommandDone)}
    assert outcomes == {"c1": "pinned", "c2": "released", "c3": "not_found"}
    await until(lambda: any(isinstance(event, LeaseExtended) for event in control_plane.events))


async def test_repeated_command_is_answered_without_asking_the_engine_again(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    engine.grant("a")
    await until(lambda: len(agent.leases) == 1)
    await control_plane.push(release("c1", "a"))
    await until(lambda: control_plane.of(CommandDone))
    control_plane.drop_connections()
    await until(lambda: len(control_plane.of(AgentHello)) == 2)
    await control_plane.push(release("c1", "a"))
    await until(lambda: len(control_plane.of(CommandDone)) == 2)
    assert [done.outcome for done in control_plane.of(CommandDone)] == ["released", "released"]
    assert len(engine.of(ReleaseLease)) == 1


async def test_command_past_its_deadline_fails_and_its_late_answer_serves_the_repeat(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    engine.grant("a")
    await until(lambda: len(agent.leases) == 1)
    engine.freeze()
    await control_plane.push(release("c1", "a", deadline_seconds=0.05))
    await until(lambda: control_plane.of(CommandDone))
    assert control_plane.of(CommandDone)[0].outcome == "failed"
    assert "within 0.05 s" in control_plane.of(CommandDone)[0].detail
    engine.thaw()
    await until(lambda: len(agent.leases) == 0)
    await control_plane.push(release("c1", "a"))
    await until(lambda: len(control_plane.of(CommandDone)) == 2)
    assert control_plane.of(CommandDone)[1].outcome == "released"
    assert len(engine.of(ReleaseLease)) == 1


async def test_command_for_a_dead_engine_fails_at_once_and_may_be_repeated(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    await engine.kill()
    await until(lambda: agent.mirror.state is EngineState.DOWN)
    await control_plane.push(release("c1", "a", deadline_seconds=600.0))
    await until(lambda: control_plane.of(CommandDone))
    assert control_plane.of(CommandDone)[0].detail == "the engine is not connected, or too old for this command"
    await engine.start()
    await until(lambda: agent.mirror.state is EngineState.READY)
    await control_plane.push(release("c1", "a"))
    await until(lambda: len(control_plane.of(CommandDone)) == 2)
    assert control_plane.of(CommandDone)[1].outcome == "not_found"


async def test_command_that_the_engine_took_with_it_fails_at_once(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: control_plane.is_connected and engine.is_connected)
    engine.answers_commands = False
    await control_plane.push(release("c1", "a", deadline_seconds=600.0))
    await until(lambda: engine.of(ReleaseLease))
    await engine.kill()
    await until(lambda: control_plane.of(CommandDone))
    assert control_plane.of(CommandDone)[0].detail == "the link broke before the engine answered"


async def test_control_plane_that_closes_every_connection_is_called_ever_more_seldom(
    run_agent: RunAgent, control_plane: FakeControlPlane
) -> None:
    timing = ControlTiming(first_retry=0.05, longest_retry=60.0)
    async with run_agent(msgspec.structs.replace(FAST, control=timing)) as agent:
        welcomed_at: list[float] = []
        for _ in range(4):
            await until(lambda: agent.control.is_connected)
            welcomed_at.append(asyncio.get_running_loop().time())
            control_plane.drop_connections()
            await until(lambda: not agent.control.is_connected)
    pauses = [later - earlier for earlier, later in itertools.pairwise(welcomed_at)]
    assert all(pause >= shortest for pause, shortest in zip(pauses, (0.025, 0.05, 0.1), strict=True))
