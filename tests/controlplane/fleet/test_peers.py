"""The list of peers: who is in it, when agents are told, and that one of an older protocol isn't."""

import time
from typing import Any

import pytest

from connector.protocol import MAX_PEERS, EventsCommitted, Peer, SetPeers, SetPolicy, Welcome
from controlplane.accounts.actions import create_token
from controlplane.accounts.models import TokenKind
from controlplane.fleet import agent_consumer, liveness, peers
from controlplane.fleet.actions import approve_engine, drain_engine, forget_engine
from controlplane.fleet.models import Agent, Engine
from tests.controlplane.database import ask, eventually
from tests.controlplane.peers import Peer as Socket
from tests.controlplane.peers import agent_hello, agent_socket, batch, engine_info, status

pytestmark = pytest.mark.django_db(transaction=True)


def an_engine(name: str, **fields: Any) -> Engine:
    return Engine.objects.create(**{"name": name, "approved": True, "incarnation": f"{name}-boot", **fields})


def names(message: SetPeers) -> list[str]:
    assert message.peers is not None
    return [peer.name for peer in message.peers]


async def told(socket: Socket, *expected: str) -> SetPeers:
    """The first list that names exactly these."""
    while True:
        message = await socket.next_of(SetPeers)
        if names(message) == list(expected):
            return message


def test_only_approved_engines_are_listed_also_draining_silent_and_unheard_ones() -> None:
    an_engine("a", draining=True)
    an_engine("b", reported_state="silent", former_incarnations=["b-older"])
    an_engine("c", approved=False)
    an_engine("d", incarnation="", role="")
    assert peers.read_peers() == SetPeers(
        peers=(
            Peer(name="a", incarnation="a-boot"),
            Peer(name="b", incarnation="b-boot", former=("b-older",)),
            Peer(name="d"),
        )
    )


@pytest.mark.parametrize(("num_engines", "is_listed"), [(MAX_PEERS, True), (MAX_PEERS + 1, False)])
def test_a_fleet_beyond_the_bound_gets_no_list(num_engines: int, is_listed: bool) -> None:
    Engine.objects.bulk_create(Engine(name=f"e{n:05}", approved=True) for n in range(num_engines))
    assert (peers.read_peers().peers is not None) == is_listed


def test_a_list_costs_one_query_and_is_read_once_for_all_who_asked_before(
    django_assert_num_queries: Any,
) -> None:
    an_engine("a")
    newest = peers._Newest()
    with django_assert_num_queries(1):
        first = newest.since(0.0)
        assert newest.since(0.0) is first
    with django_assert_num_queries(1):
        assert newest.since(time.monotonic()) is first  # read anew, and equal
    an_engine("b")
    assert newest.since(time.monotonic()) is not first


def test_restarts_are_remembered_newest_first_and_bounded() -> None:
    for number in range(11):
        hello = agent_hello(engine=engine_info(incarnation=f"boot-{number}"))
        liveness.register_agent(hello, connection="c", auto_approve=True)
    engine = Engine.objects.get()
    assert engine.incarnation == "boot-10"
    assert engine.former_incarnations == [f"boot-{number}" for number in range(9, 1, -1)]


def test_an_incarnation_that_comes_back_is_no_former_one() -> None:
    for incarnation in ("boot-1", "boot-2", "boot-1"):
        hello = agent_hello(engine=engine_info(incarnation=incarnation))
        liveness.register_agent(hello, connection="c", auto_approve=True)
    engine = Engine.objects.get()
    assert (engine.incarnation, engine.former_incarnations) == ("boot-1", ["boot-2"])


async def test_a_hello_is_answered_with_the_peers_before_the_policy(server_url: str, agent_secret: str) -> None:
    await ask(lambda: an_engine("prefill-0"))
    async with agent_socket(server_url, agent_secret) as socket:
        await socket.say(agent_hello())
        frames = [await socket.next_frame() for _ in range(3)]
    assert [type(frame) for frame in frames] == [Welcome, SetPeers, SetPolicy]
    assert names(frames[1]) == ["decode-0", "prefill-0"]


async def test_every_change_of_the_fleet_is_told(server_url: str, agent_secret: str) -> None:
    await ask(lambda: an_engine("prefill-0", approved=False))
    async with agent_socket(server_url, agent_secret) as socket:
        await socket.say(agent_hello())
        await told(socket, "decode-0")
        await ask(lambda: approve_engine("prefill-0", actor="test"))
        await told(socket, "decode-0", "prefill-0")
        await ask(lambda: drain_engine("prefill-0", draining=True, actor="test"))
        await ask(lambda: forget_engine("prefill-0", actor="test"))
        await told(socket, "decode-0")


async def test_a_peers_restart_is_told_with_what_it_replaced(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as socket, agent_socket(server_url, agent_secret) as other:
        await socket.say(agent_hello())
        await other.say(agent_hello("prefill-0"))
        await told(socket, "decode-0", "prefill-0")
        restarted = engine_info("prefill-0", incarnation="incarnation-2")
        await other.say(status(engine=restarted, incarnation="incarnation-2"))
        message = await told(socket, "decode-0", "prefill-0")
    assert message.peers is not None
    assert message.peers[1] == Peer(name="prefill-0", incarnation="incarnation-2", former=("incarnation-1",))


async def test_a_heartbeat_finds_what_the_channel_layer_lost(
    server_url: str, agent_secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_consumer, "PEERS_MAX_AGE_SECONDS", 0.0)
    async with agent_socket(server_url, agent_secret) as socket:
        await socket.say(agent_hello())
        await told(socket, "decode-0")
        await ask(lambda: an_engine("prefill-0"))
        await socket.say(status())
        await told(socket, "decode-0", "prefill-0")


async def test_an_agent_of_the_version_before_is_told_no_peers(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as socket:
        await socket.say(agent_hello(protocol=1))
        frames = [await socket.next_frame() for _ in range(2)]
        await ask(lambda: an_engine("prefill-0"))
        await socket.say(status())
        await socket.say(batch())
        frames.append(await socket.next_frame())
    assert [type(frame) for frame in frames] == [Welcome, SetPolicy, EventsCommitted]


async def test_an_engine_that_awaits_approval_is_told_no_peers(server_url: str) -> None:
    secret = (await ask(lambda: create_token(kind=TokenKind.AGENT, name="host", actor="test")))[1]
    async with agent_socket(server_url, secret) as socket:
        await socket.say(agent_hello())
        welcome = await socket.next_of(Welcome)
        await socket.say(status())
        await eventually(lambda: Agent.objects.filter(connected=True).count(), 1)
        await ask(lambda: approve_engine("decode-0", actor="test"))
        assert await socket.next_close() == 1013
    assert not welcome.approved
