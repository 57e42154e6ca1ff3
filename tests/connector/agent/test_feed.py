"""The lease feed on real websockets: snapshot, gapless deltas, tokens, slow routers, releases."""

import asyncio
import functools

import aiohttp
import msgspec
import pytest

from connector.agent.app import Agent
from connector.agent.feed import FeedHub, FeedLimits, Subscriber
from connector.protocol import (
    EngineChanged,
    EngineState,
    FeedDelta,
    LeaseExtended,
    LeaseRenewed,
    LoadChanged,
    Ping,
    ReleaseLease,
)
from tests.connector.agent.conftest import FAST, RunAgent
from tests.connector.agent.fake_control_plane import AGENT_TOKEN, FakeControlPlane
from tests.connector.agent.fake_engine import FakeEngine
from tests.connector.agent.feed_client import FEED_TOKEN, FeedClient
from tests.connector.agent.samples import load, offer
from tests.connector.agent.waiting import until


async def test_router_that_comes_late_gets_all_leases_in_its_snapshot(
    agent: Agent, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    await until(lambda: engine.is_connected and agent.mirror.load is not None)
    engine.grant("a")
    engine.grant("b", remaining_seconds=100.0)
    await until(lambda: len(agent.leases) == 2)
    client = await FeedClient(session, agent.feed_port).connect()
    await until(lambda: client.snapshot is not None)
    snapshot = client.snapshot
    assert snapshot is not None
    assert (snapshot.engine_name, snapshot.state, snapshot.incarnation) == ("d0", EngineState.READY, "inc-1")
    assert snapshot.boot == agent.boot
    assert snapshot.load == engine.load
    assert client.leases.keys() == {"a", "b"}
    assert client.leases["b"].offer == "signed-b"
    assert client.leases["b"].chain == ("c1", "c2")
    assert 95.0 < client.leases["b"].lease.remaining_seconds < 100.0
    await client.close()


async def test_every_router_gets_every_change_without_gaps(
    agent: Agent, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    await until(lambda: engine.is_connected and agent.mirror.state is EngineState.READY)
    early = await FeedClient(session, agent.feed_port).connect()
    for number in range(100):
        engine.grant(f"a{number}")
    late = await FeedClient(session, agent.feed_port).connect()
    for number in range(50):
        engine.end(f"a{number}")
    renewal = LeaseExtended(lease_id="a99", remaining_seconds=900.0)
    engine.send(LeaseRenewed(lease=renewal, offer="signed-again"))
    await until(lambda: agent.leases.has(offer("a99", token="signed-again")))
    expected = {f"a{number}" for number in range(50, 100)}
    for client in (early, late):
        await until(functools.partial(_has_caught_up, client, agent))
        assert client.leases.keys() == expected
        assert client.leases["a99"].offer == "signed-again"
        await client.close()


def _has_caught_up(client: FeedClient, agent: Agent) -> bool:
    return client.snapshot is not None and client.sequence == agent.hub.sequence


async def test_snapshot_holds_the_renewed_offer_and_the_time_left(
    agent: Agent, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    await until(lambda: engine.is_connected and agent.mirror.state is EngineState.READY)
    engine.grant("a", remaining_seconds=20.0)
    renewal = LeaseExtended(lease_id="a", remaining_seconds=900.0, pinned=True)
    engine.send(LeaseRenewed(lease=renewal, offer="signed-again"))
    await until(lambda: agent.leases.has(offer("a", token="signed-again")))
    client = await FeedClient(session, agent.feed_port).connect()
    await until(lambda: client.leases)
    assert client.leases["a"].offer == "signed-again"
    assert client.leases["a"].lease.pinned
    assert client.leases["a"].lease.remaining_seconds == 900.0
    await client.close()


@pytest.mark.parametrize("header", [None, "Bearer wrong", f"Bearer {AGENT_TOKEN}", FEED_TOKEN, "Bearer \udcff", ""])
async def test_wrong_token_is_turned_away(header: str | None, agent: Agent, session: aiohttp.ClientSession) -> None:
    headers = {} if header is None else {"Authorization": header.encode("utf-8", "replace").decode()}
    url = f"http://127.0.0.1:{agent.feed_port}/feed"
    async with session.get(url, headers=headers) as response:
        assert response.status == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await session.ws_connect(url, headers=headers)
    assert refusal.value.status == 401
    assert agent.hub.num_subscribers == 0


async def test_router_releases_a_lease_and_is_told_what_happened(
    agent: Agent, engine: FakeEngine, router: FeedClient
) -> None:
    await until(lambda: engine.is_connected and router.state is EngineState.READY)
    engine.grant("a")
    await until(lambda: router.leases)
    await router.release(ReleaseLease(command_id="r1", key="a", reason="cancelled"))
    await router.release(ReleaseLease(command_id="r2", key="gone"))
    await until(lambda: len(router.done) == 2)
    assert {done.command_id: done.outcome for done in router.done} == {"r1": "released", "r2": "not_found"}
    assert router.leases == {}
    assert engine.of(ReleaseLease)[0].reason == "cancelled"


@pytest.mark.parametrize("frame", [b"\xc1", b"", msgspec.msgpack.encode(Ping(nonce=1))])
async def test_foreign_frame_of_a_router_closes_its_connection_only(
    frame: bytes, agent: Agent, router: FeedClient, session: aiohttp.ClientSession
) -> None:
    other = await FeedClient(session, agent.feed_port).connect()
    await other.socket.send_bytes(frame)
    await until(lambda: other.is_over)
    assert other.socket.close_code == 1007
    await until(lambda: agent.hub.num_subscribers == 1)
    assert not router.is_over


async def test_text_and_oversize_frames_close_the_connection(agent: Agent, session: aiohttp.ClientSession) -> None:
    texting = await FeedClient(session, agent.feed_port).connect()
    await texting.socket.send_str("{}")
    await until(lambda: texting.is_over)
    assert texting.socket.close_code == 1003
    huge = await FeedClient(session, agent.feed_port).connect()
    await huge.release(ReleaseLease(command_id="r", key="x" * 100_000))
    await until(lambda: huge.is_over)
    assert huge.socket.close_code == 1009


async def test_router_that_does_not_read_is_cut_off_and_the_others_go_on(
    run_agent: RunAgent, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    limits = FeedLimits(max_queued_frames=50, write_timeout=0.3)
    async with run_agent(msgspec.structs.replace(FAST, feed=limits)) as agent:
        await until(lambda: engine.is_connected and agent.mirror.state is EngineState.READY)
        quick = await FeedClient(session, agent.feed_port).connect()
        reader, writer = await _open_feed_without_reading(agent.feed_port)
        await until(lambda: agent.hub.num_subscribers == 2)
        num_granted = 0
        while agent.hub.num_subscribers == 2:
            assert num_granted < 2000, "nobody was cut off"
            engine.grant(f"a{num_granted}", token="x" * 100_000)
            num_granted += 1
            await until(lambda: len(quick.leases) == num_granted)  # noqa: B023
        assert agent.hub.num_subscribers == 1
        engine.grant("last")
        await until(lambda: "last" in quick.leases)
        assert not quick.is_over
        await quick.close()
        writer.close()
        del reader


async def _open_feed_without_reading(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A websocket client that shakes hands and then reads nothing, with a small buffer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    request = (
        "GET /feed HTTP/1.1\r\nHost: feed\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Authorization: Bearer {FEED_TOKEN}\r\n\r\n"
    )
    writer.write(request.encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 101")
    return reader, writer


async def test_overflowing_queue_holds_nothing_more() -> None:
    subscriber = Subscriber(b"snapshot", FeedLimits(max_queued_frames=3))
    for _ in range(10):
        subscriber.push(b"delta")
    assert subscriber.overflowed

    async def send(_: bytes) -> None:
        raise AssertionError("nothing is sent once frames were lost")

    assert "slower" in await subscriber.write_to(send)


async def test_bytes_bound_a_queue_as_frames_do() -> None:
    subscriber = Subscriber(b"", FeedLimits(max_queued_bytes=1000))
    for _ in range(3):
        subscriber.push(b"x" * 600)
    assert subscriber.overflowed


async def test_only_so_many_routers_are_served(run_agent: RunAgent, session: aiohttp.ClientSession) -> None:
    async with run_agent(msgspec.structs.replace(FAST, feed=FeedLimits(max_routers=1))) as agent:
        first = await FeedClient(session, agent.feed_port).connect()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await FeedClient(session, agent.feed_port).connect()
        assert refusal.value.status == 503
        await first.close()
        await until(lambda: agent.hub.num_subscribers == 0)
        await (await FeedClient(session, agent.feed_port).connect()).close()


async def test_too_many_open_releases_close_the_connection(
    run_agent: RunAgent, engine: FakeEngine, session: aiohttp.ClientSession
) -> None:
    limits = FeedLimits(max_open_releases=2)
    async with run_agent(msgspec.structs.replace(FAST, feed=limits)) as agent:
        await until(lambda: engine.is_connected and agent.mirror.state is EngineState.READY)
        engine.answers_commands = False
        client = await FeedClient(session, agent.feed_port).connect()
        for number in range(3):
            await client.release(ReleaseLease(command_id=f"r{number}", key="a"))
        await until(lambda: client.is_over)
        assert client.socket.close_code == 1008


async def test_load_is_published_at_most_once_per_interval_and_only_when_it_changed() -> None:
    hub = FeedHub("boot", "d0", tuple, FeedLimits(load_interval=1000.0))
    subscriber = hub.subscribe()
    hub.set_load(load(1))
    hub.set_load(load(2))
    frames: list[bytes] = []

    async def send(frame: bytes) -> None:
        frames.append(frame)

    writer = asyncio.create_task(subscriber.write_to(send))
    hub.publish(EngineChanged(state=EngineState.READY, incarnation="i"))
    await until(lambda: len(frames) == 3)
    writer.cancel()
    deltas = [msgspec.msgpack.decode(frame, type=FeedDelta) for frame in frames[1:]]
    assert [type(delta.change) for delta in deltas] == [LoadChanged, EngineChanged]
    assert [delta.sequence for delta in deltas] == [1, 2]


async def test_feed_serves_on_while_engine_and_control_plane_are_away(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane, session: aiohttp.ClientSession
) -> None:
    await until(lambda: engine.is_connected)
    await control_plane.stop()
    await engine.kill()
    await until(lambda: agent.mirror.state is EngineState.DOWN)
    client = await FeedClient(session, agent.feed_port).connect()
    await until(lambda: client.snapshot is not None)
    assert client.state is EngineState.DOWN
    await client.release(ReleaseLease(command_id="r1", key="a"))
    await until(lambda: client.done)
    assert client.done[0].outcome == "failed"
    await client.close()


async def test_healthz_tells_the_state_without_a_token_and_without_secrets(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane, session: aiohttp.ClientSession
) -> None:
    await until(lambda: engine.is_connected and agent.control.is_connected)
    engine.grant("a")
    await until(lambda: len(agent.leases) == 1)
    async with session.get(f"http://127.0.0.1:{agent.feed_port}/healthz") as response:
        assert response.status == 200
        text = await response.text()
    state = msgspec.json.decode(text)
    assert state["engine_state"] == "ready"
    assert state["control_plane_connected"] is True
    assert state["num_leases"] == 1
    assert FEED_TOKEN not in text
    assert AGENT_TOKEN not in text
    assert "session-1" not in text
