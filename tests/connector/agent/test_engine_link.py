"""The link tells a silent engine from a dead one, and drops a peer that it can't trust."""

import asyncio

import pytest

from connector.agent.app import Agent, Tuning
from connector.agent.backoff import Backoff, Occasionally
from connector.agent.control_socket import ControlTiming
from connector.agent.environment import Options
from connector.framing import encode_frame
from connector.protocol import (
    EngineChanged,
    EngineHello,
    EngineState,
    Ping,
    PolicyApplied,
    PolicyValues,
    Pong,
)
from tests.connector.agent.conftest import RunAgent
from tests.connector.agent.fake_control_plane import FakeControlPlane
from tests.connector.agent.fake_engine import FakeEngine
from tests.connector.agent.feed_client import FeedClient
from tests.connector.agent.samples import engine_info, load
from tests.connector.agent.waiting import until


async def test_engine_that_starts_later_is_found(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await engine.kill()
    engine.path.unlink()
    async with run_agent() as agent:
        await until(lambda: control_plane.is_connected)
        assert agent.mirror.state is EngineState.DOWN
        await engine.start()
        await until(lambda: agent.mirror.state is EngineState.READY)


async def test_stopped_engine_shows_as_stalled_within_3_seconds_at_production_settings(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    clock = asyncio.get_running_loop().time
    lateness = 0.0

    async def watch_the_machine() -> None:
        nonlocal lateness
        while True:
            due = clock() + 0.01
            await asyncio.sleep(0.01)
            lateness += clock() - due

    async with run_agent(Tuning(control=ControlTiming(first_retry=0.01))) as agent:
        await until(lambda: agent.mirror.load is not None and control_plane.is_connected)
        watching = asyncio.create_task(watch_the_machine())
        engine.freeze()
        frozen_at = clock()
        await until(lambda: control_plane.shows(state=EngineState.STALLED))
        assert 1.0 < clock() - frozen_at < 3.0 + lateness
        watching.cancel()
        engine.thaw()
        await until(lambda: control_plane.shows(state=EngineState.READY))


async def test_routers_see_a_frozen_engine_stall_and_return(
    agent: Agent, engine: FakeEngine, router: FeedClient
) -> None:
    await until(lambda: agent.mirror.load is not None)
    engine.freeze()
    await until(lambda: router.state is EngineState.STALLED)
    engine.thaw()
    await until(lambda: router.state is EngineState.READY)
    assert [change.state for change in router.changes if isinstance(change, EngineChanged)][-2:] == [
        EngineState.STALLED,
        EngineState.READY,
    ]


async def test_silent_engine_is_sent_one_ping_however_long_it_is_silent(options: Options, run_agent: RunAgent) -> None:
    received = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        applied = PolicyApplied(revision=0, values=PolicyValues())
        hello = EngineHello(protocol=1, engine=engine_info(), policy=applied, num_leases=0)
        writer.write(encode_frame(hello))
        while data := await reader.read(4096):
            received += data
        writer.close()

    options.link_path.unlink()
    server = await asyncio.start_unix_server(serve, options.link_path)
    async with run_agent() as agent:
        await until(lambda: agent.mirror.state is EngineState.STALLED)
    server.close()
    await server.wait_closed()
    assert received == encode_frame(Ping(nonce=1))


async def test_engine_frozen_before_its_hello_is_stalled(run_agent: RunAgent, engine: FakeEngine) -> None:
    engine.freeze()
    async with run_agent() as agent:
        await until(lambda: agent.mirror.state is EngineState.STALLED)
        engine.thaw()
        await until(lambda: agent.mirror.state is EngineState.READY)


async def test_engine_that_answers_no_ping_is_stalled_though_it_sends_other_things(
    agent: Agent, engine: FakeEngine
) -> None:
    await until(lambda: agent.mirror.state is EngineState.READY and engine.is_connected)
    engine.answers_pings = False
    engine.grant("a")
    await until(lambda: agent.mirror.state is EngineState.STALLED)
    assert len(agent.leases) == 1


async def test_socket_of_another_engine_is_refused(
    run_agent: RunAgent, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.name = "p7"
    async with run_agent() as agent:
        await until(lambda: engine.num_connections >= 3)
        assert agent.mirror.info is None
        assert caplog.text.count("belongs to engine p7, not to d0") == 1
        engine.name = "d0"
        await until(lambda: agent.mirror.state is EngineState.READY)


async def test_engine_of_a_distant_protocol_is_refused(
    run_agent: RunAgent, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.protocol = 99
    async with run_agent() as agent:
        await until(lambda: engine.num_connections >= 2)
        assert agent.mirror.state is EngineState.DOWN
    assert "the engine speaks protocol 99" in caplog.text


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x00"])
async def test_garbage_ends_the_connection_and_the_next_one_works(
    garbage: bytes, agent: Agent, engine: FakeEngine
) -> None:
    await until(lambda: agent.mirror.state is EngineState.READY and engine.is_connected)
    engine.send_bytes(garbage)
    await until(lambda: engine.num_connections == 2)
    await until(lambda: agent.mirror.state is EngineState.READY)
    engine.grant("a")
    await until(lambda: len(agent.leases) == 1)


async def test_message_before_the_hello_ends_the_connection(
    options: Options, run_agent: RunAgent, caplog: pytest.LogCaptureFixture
) -> None:
    num_connections = 0

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        writer.write(encode_frame(Pong(nonce=1, load=load())))
        await writer.drain()
        writer.close()

    options.link_path.unlink()
    server = await asyncio.start_unix_server(serve, options.link_path)
    async with run_agent() as agent:
        await until(lambda: num_connections >= 2)
        assert agent.mirror.info is None
    assert "Pong came before the hello" in caplog.text
    server.close()
    await server.wait_closed()


def test_delays_grow_to_the_cap_and_start_again_after_a_reset() -> None:
    backoff = Backoff(1.0, 8.0)
    ceilings = [1.0, 2.0, 4.0, 8.0, 8.0]
    for ceiling in ceilings:
        assert ceiling / 2 <= backoff.next_delay() <= ceiling
    backoff.reset()
    assert backoff.next_delay() <= 1.0


def test_complaint_is_repeated_once_per_interval_and_topic() -> None:
    now = 0.0
    complaints = Occasionally(60.0, clock=lambda: now)
    assert complaints.allows("a")
    assert not complaints.allows("a")
    assert complaints.allows("b")
    now = 60.0
    assert complaints.allows("a")
