"""What a router meets at its socket, over a real websocket."""

import asyncio
import time
from uuid import uuid4

import aiohttp
import pytest

from connector.protocol import EventsCommitted, FleetSnapshot, Refused, RouterStatus, TurnRecorded, Welcome
from controlplane.accounts.actions import create_router_key, register_router_key, revoke_router_key
from controlplane.accounts.secrets import sha256_of
from controlplane.fleet.actions import drain_engine
from controlplane.fleet.models import Engine, EventFault, Router
from controlplane.placement.models import Turn
from controlplane.policy.actions import publish_policy
from tests.controlplane.database import ask, eventually
from tests.controlplane.peers import Peer, agent_hello, agent_socket, batch, lease, router_hello, router_socket

pytestmark = pytest.mark.django_db(transaction=True)


def turn(**changes: object) -> TurnRecorded:
    fields = {
        "turn_id": str(uuid4()),
        "session_id": "session-1",
        "parent_turn_id": "",
        "tenant": "default",
        "index": 1,
        "model": "tiny",
        "prefill_engine": "prefill-0",
        "decode_engine": "decode-0",
        "status": "ok",
        "http_status": 200,
        "stream": True,
        "started_age_ms": 100.0,
        "prefill_ms": 40.0,
        "ttft_ms": 50.0,
        "duration_ms": 95.0,
    }
    return TurnRecorded(**{**fields, **changes})


async def greet(peer: Peer) -> Welcome:
    await peer.say(router_hello())
    return await peer.next_of(Welcome)


def make_engine(name: str, **fields: object) -> Engine:
    return Engine.objects.create(name=name, role="decode", approved=True, reported_state="ready", **fields)


async def test_agents_token_does_not_open_the_routers_door(server_url: str, agent_secret: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        async with router_socket(server_url, agent_secret):
            pass
    assert refusal.value.status == 403


async def test_router_is_told_the_whole_fleet(server_url: str, router_secret: str) -> None:
    await ask(lambda: make_engine("decode-0", model="tiny", draining=True))
    await ask(lambda: Engine.objects.create(name="unheard"))
    await ask(lambda: register_router_key(tenant="acme", name="k", secret="bh_api_secret", actor="test"))
    await ask(lambda: publish_policy(scope="tenant:acme", values={"trace_sampling": 0.5}, author="test"))
    await ask(lambda: publish_policy(scope="engine:decode-0", values={"decoder_kv_blocks_ttl": 60}, author="test"))
    async with router_socket(server_url, router_secret) as peer:
        await greet(peer)
        snapshot = await peer.next_of(FleetSnapshot)
    assert (snapshot.revision, snapshot.values.decoder_kv_blocks_ttl) == (3, 480)
    assert {name: patch.trace_sampling for name, patch in snapshot.tenant_patches.items()} == {"acme": 0.5}
    assert [(engine.name, engine.state, engine.draining) for engine in snapshot.engines] == [
        ("decode-0", "ready", True)
    ]
    assert [(key.tenant, key.sha256) for key in snapshot.api_keys] == [("acme", sha256_of("bh_api_secret"))]


async def test_operators_keys_reach_the_router_as_such_and_go_when_revoked(server_url: str, router_secret: str) -> None:
    async with router_socket(server_url, router_secret) as peer:
        await greet(peer)
        await peer.next_of(FleetSnapshot)
        key, secret = await ask(lambda: create_router_key(tenant="acme", name="ops", operator=True, actor="test"))
        (told,) = (await peer.next_of(FleetSnapshot)).api_keys
        assert (told.tenant, told.sha256, told.operator) == ("acme", sha256_of(secret), True)
        await ask(lambda: revoke_router_key(key, actor="test"))
        assert (await peer.next_of(FleetSnapshot)).api_keys == ()


async def test_each_kind_of_change_reaches_the_router(server_url: str, router_secret: str, agent_secret: str) -> None:
    await ask(lambda: make_engine("decode-1"))
    async with router_socket(server_url, router_secret) as peer:
        await greet(peer)
        await peer.next_of(FleetSnapshot)
        await ask(lambda: drain_engine("decode-1", draining=True, actor="test"))
        assert (await peer.next_of(FleetSnapshot)).engines[0].draining
        await ask(lambda: publish_policy(scope="fleet", values={"kv_recompute_threshold": 96}, author="test"))
        assert (await peer.next_of(FleetSnapshot)).values.kv_recompute_threshold == 96
        await ask(lambda: register_router_key(tenant="acme", name="k", secret="bh_api_secret", actor="test"))
        assert len((await peer.next_of(FleetSnapshot)).api_keys) == 1
        async with agent_socket(server_url, agent_secret) as agent:
            await agent.say(agent_hello("decode-0"))
            names = [engine.name for engine in (await peer.next_of(FleetSnapshot)).engines]
            assert names == ["decode-0", "decode-1"]


async def test_changes_in_a_burst_are_told_at_most_four_times_a_second(server_url: str, router_secret: str) -> None:
    await ask(lambda: make_engine("decode-0"))
    async with router_socket(server_url, router_secret) as peer:
        await greet(peer)
        await peer.next_of(FleetSnapshot)
        started = time.monotonic()
        for number in range(20):
            await ask(lambda number=number: drain_engine("decode-0", draining=number % 2 == 0, actor="test"))
        await ask(lambda: publish_policy(scope="fleet", values={"trace_sampling": 0.1}, author="test"))
        num_snapshots = 1
        while (await peer.next_of(FleetSnapshot)).revision == 1:
            num_snapshots += 1
        assert num_snapshots <= 4 * (time.monotonic() - started) + 1


async def test_lost_message_is_made_up_for_by_the_next_heartbeat(
    server_url: str, router_secret: str, agent_secret: str
) -> None:
    async with router_socket(server_url, router_secret) as peer:
        await greet(peer)
        await peer.next_of(FleetSnapshot)
        await ask(lambda: make_engine("silently-added"))
        heartbeat = RouterStatus(num_active_turns=3, num_leases=2, num_pending_events=1, num_dropped_events=0)
        await peer.say(heartbeat)
        assert [engine.name for engine in (await peer.next_of(FleetSnapshot)).engines] == ["silently-added"]
    assert await ask(lambda: Router.objects.values_list("num_active_turns", "num_leases").get()) == (3, 2)


async def test_turns_are_stored_once_and_nothing_else_is(server_url: str, router_secret: str) -> None:
    first = turn()
    async with router_socket(server_url, router_secret) as peer:
        await greet(peer)
        for _ in range(2):
            await peer.say(batch(first, lease(), incarnation=""))
            assert await peer.next_of(EventsCommitted) == EventsCommitted(boot="boot-1", sequence=2)
    assert await ask(lambda: [str(found.pk) for found in Turn.objects.all()]) == [first.turn_id]
    fault = await ask(EventFault.objects.get)
    assert (fault.sender, fault.event_type, fault.num_events) == ("router:router-0", "LeaseGranted", 1)
    async with router_socket(server_url, router_secret) as peer:
        assert (await greet(peer)).committed_sequence == 2


async def test_router_that_leaves_is_shown_as_disconnected(server_url: str, router_secret: str) -> None:
    async with router_socket(server_url, router_secret) as peer:
        await greet(peer)
        assert await ask(lambda: Router.objects.get().connected)
    await eventually(lambda: Router.objects.get().connected, False)


async def test_processes_of_one_router_speak_beside_each_other_with_one_token(
    server_url: str, router_secret: str
) -> None:
    """A token opens the door and binds no name."""
    async with router_socket(server_url, router_secret) as first, router_socket(server_url, router_secret) as second:
        for number, peer in enumerate((first, second)):
            await peer.say(router_hello(f"r0-{number}", boot=f"boot-{number}"))
            assert (await peer.next_of(Welcome)).approved
        for peer, boot, sequence in ((first, "boot-0", 1), (second, "boot-1", 1), (first, "boot-0", 2)):
            await peer.say(RouterStatus(num_active_turns=0, num_leases=0, num_pending_events=0, num_dropped_events=0))
            await peer.say(batch(turn(), first=sequence, boot=boot))
            assert (await peer.next_of(EventsCommitted)).sequence == sequence
        connected = await ask(lambda: list(Router.objects.filter(connected=True).order_by("name")))
        assert [router.name for router in connected] == ["r0-0", "r0-1"]


async def test_hello_with_a_bad_name_is_refused(server_url: str, router_secret: str) -> None:
    async with router_socket(server_url, router_secret) as peer:
        await peer.socket.send_str('{"type":"RouterHello","protocol":1,"boot":"b","router_name":"no spaces"}')
        assert (await peer.next_of(Refused)).reason
        assert await peer.next_close() == 1008


async def test_silent_socket_is_closed_without_a_hello(
    server_url: str, router_secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.fleet.sockets.HELLO_SECONDS", 0.05)
    async with router_socket(server_url, router_secret) as peer, asyncio.timeout(5):
        assert "no hello" in (await peer.next_of(Refused)).reason
