"""What an agent meets at its socket, over a real websocket."""

from typing import Any

import aiohttp
import pytest

from connector.protocol import (
    PROTOCOL_VERSION,
    EngineState,
    EventsCommitted,
    LeaseEnded,
    LeaseSnapshot,
    LeaseState,
    Refused,
    SetPolicy,
    TurnRecorded,
    Welcome,
)
from controlplane.accounts.actions import create_token, revoke_token
from controlplane.accounts.models import ApiToken, TokenKind
from controlplane.fleet.actions import approve_engine
from controlplane.fleet.models import Agent, Engine, EventFault
from controlplane.placement.models import Placement
from tests.controlplane.database import ask, eventually
from tests.controlplane.peers import Peer, agent_hello, agent_socket, batch, engine_info, lease, status

pytestmark = pytest.mark.django_db(transaction=True)


async def greet(peer: Peer, **changes: Any) -> Welcome:
    await peer.say(agent_hello(**changes))
    return await peer.next_of(Welcome)


async def test_wrong_token_is_refused_at_the_handshake(server_url: str, router_secret: str) -> None:
    for secret in ("bh_agent_wrong", router_secret, "x" * 600):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            async with agent_socket(server_url, secret):
                pass
        assert refusal.value.status == 403


async def test_hello_registers_engine_and_tells_its_policy(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        welcome = await greet(peer)
        policy = await peer.next_of(SetPolicy)
    assert (welcome.approved, welcome.committed_sequence) == (True, 0)
    assert (policy.revision, policy.values.kv_recompute_threshold) == (1, 64)
    engine = await ask(lambda: Engine.objects.select_related("agent").get())
    assert (engine.name, engine.role, engine.model, engine.state) == ("decode-0", "decode", "tiny", "ready")
    assert (engine.agent.boot, engine.agent.version) == ("boot-1", "0.1.0")
    await eventually(lambda: Agent.objects.get().connected, False)


async def test_engine_that_has_not_answered_yet_is_down_without_role(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer, engine=None)
        assert await ask(lambda: Engine.objects.values_list("role", "reported_state").get()) == ("", "down")
        await peer.say(status(engine=engine_info()))
        await eventually(lambda: Engine.objects.values_list("role", "reported_state").get(), ("decode", "ready"))


@pytest.mark.parametrize(
    ("first_frame", "reason"),
    [
        (status(), "hello"),
        (agent_hello(protocol=PROTOCOL_VERSION + 2), f"protocol {PROTOCOL_VERSION + 2}"),
        (agent_hello(boot="b" * 65), "64 characters"),
    ],
)
async def test_bad_first_frame_is_refused_with_a_reason(
    server_url: str, agent_secret: str, first_frame: Any, reason: str
) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        await peer.say(first_frame)
        assert reason in (await peer.next_of(Refused)).reason
        assert await peer.next_close() == 1008
    assert not await ask(Engine.objects.exists)


async def test_frame_that_is_no_json_is_refused_before_and_skipped_after_the_hello(
    server_url: str, agent_secret: str
) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        await peer.socket.send_str("{")
        assert (await peer.next_of(Refused)).reason
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer)
        await peer.socket.send_str('{"type": "FromTheFuture"}')
        await peer.say(batch(lease()))
        assert (await peer.next_of(EventsCommitted)).sequence == 1


async def test_one_version_of_protocol_skew_is_served(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        assert (await greet(peer, protocol=PROTOCOL_VERSION + 1)).protocol == PROTOCOL_VERSION


async def test_batch_is_stored_once_however_often_it_is_sent(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer)
        for _ in range(2):
            await peer.say(batch(lease("one"), lease("two")))
            assert await peer.next_of(EventsCommitted) == EventsCommitted(boot="boot-1", sequence=2)
        await peer.say(batch(lease("two"), lease("three"), first=2))
        assert (await peer.next_of(EventsCommitted)).sequence == 3
    assert await ask(lambda: sorted(Placement.objects.values_list("id", flat=True))) == ["one", "three", "two"]


async def test_reconnect_resumes_after_the_committed_sequence(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer)
        await peer.say(batch(lease("one"), lease("two")))
        await peer.next_of(EventsCommitted)
    async with agent_socket(server_url, agent_secret) as peer:
        assert (await greet(peer)).committed_sequence == 2
    async with agent_socket(server_url, agent_secret) as peer:
        assert (await greet(peer, boot="boot-2")).committed_sequence == 0


async def test_bad_event_is_counted_and_the_others_are_stored(server_url: str, agent_secret: str) -> None:
    turn = TurnRecorded(
        turn_id="t",
        session_id="s",
        parent_turn_id="",
        tenant="default",
        index=1,
        model="tiny",
        prefill_engine="p",
        decode_engine="d",
        status="ok",
        http_status=200,
        stream=True,
        started_age_ms=1,
        prefill_ms=1,
        ttft_ms=1,
        duration_ms=1,
    )
    unstorable = LeaseEnded(lease_id="one", state=LeaseState.HELD, reason="odd")
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer)
        events = batch(lease("one"), turn, unstorable, lease("two"))
        numbered = '{"sequence": 5, "age_ms": 1, "event": {"type": "New"}}'
        text = f'{{"type": "EventBatch", "boot": "boot-1", "incarnation": "i", "events": [{numbered}]}}'
        await peer.say(events)
        assert (await peer.next_of(EventsCommitted)).sequence == 4
        await peer.socket.send_str(text)
        assert (await peer.next_of(EventsCommitted)).sequence == 5
    assert await ask(Placement.objects.count) == 2
    faults = await ask(lambda: set(EventFault.objects.values_list("sender", "event_type", "num_events")))
    assert faults == {("agent:decode-0", name, 1) for name in ("TurnRecorded", "LeaseEnded", "New")}


async def test_event_that_breaks_its_handler_does_not_wedge_the_agent(
    server_url: str, agent_secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from controlplane.placement import actions

    store = actions.apply_events

    def fail_on_two(events: Any, **kwargs: Any) -> Any:
        if any(event.lease_id == "two" for event, _ in events):
            raise RuntimeError("a fault of ours")
        return store(events, **kwargs)

    monkeypatch.setattr(actions, "apply_events", fail_on_two)
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer)
        await peer.say(batch(lease("one"), lease("two"), lease("three")))
        assert (await peer.next_of(EventsCommitted)).sequence == 3
    assert await ask(lambda: sorted(Placement.objects.values_list("id", flat=True))) == ["one", "three"]
    assert await ask(lambda: EventFault.objects.get().error) == "RuntimeError"


async def test_newer_connection_takes_over_and_closes_the_older(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as old, agent_socket(server_url, agent_secret) as new:
        await greet(old)
        await greet(new)
        assert await old.next_close() == 1013
        await new.say(batch(lease()))
        assert (await new.next_of(EventsCommitted)).sequence == 1
        assert await ask(lambda: Agent.objects.get().connected)


async def test_batch_of_another_boot_is_not_stored(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer)
        await peer.say(batch(lease(), boot="boot-0"))
        assert await peer.next_close() == 1013
    assert not await ask(Placement.objects.exists)


async def test_unapproved_engine_waits_without_policy_and_keeps_its_events(server_url: str) -> None:
    secret = (await ask(lambda: create_token(kind=TokenKind.AGENT, name="strict", actor="test")))[1]
    async with agent_socket(server_url, secret) as peer:
        assert not (await greet(peer)).approved
        await peer.say(batch(lease()))
        await peer.say(status())
        await eventually(lambda: Engine.objects.get().state, "pending")
        await ask(lambda: approve_engine("decode-0", actor="test"))
        assert await peer.next_close() == 1013
    assert not await ask(Placement.objects.exists)
    async with agent_socket(server_url, secret) as peer:
        assert (await greet(peer)).approved
        assert (await peer.next_of(SetPolicy)).revision == 1
        await peer.say(batch(lease()))
        assert (await peer.next_of(EventsCommitted)).sequence == 1


async def test_status_changes_state_and_load(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer)
        await peer.say(status(EngineState.STALLED, num_pending_events=7))
        await eventually(lambda: Engine.objects.get().state, "stalled")
    engine = await ask(lambda: Engine.objects.select_related("agent").get())
    assert (engine.load["num_free_blocks"], engine.agent.num_pending_events) == (900, 7)


async def test_new_incarnation_loses_the_leases_and_is_told_the_policy(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer)
        await peer.next_of(SetPolicy)
        await peer.say(batch(lease("old")))
        await peer.next_of(EventsCommitted)
        await peer.say(status(incarnation="incarnation-2", engine=engine_info(incarnation="incarnation-2")))
        assert (await peer.next_of(SetPolicy)).revision == 1
        await eventually(lambda: Placement.objects.get().state, "lost")


async def test_engine_down_loses_its_leases(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer)
        await peer.say(batch(lease("old")))
        await peer.next_of(EventsCommitted)
        await peer.say(status(EngineState.DOWN))
        await eventually(lambda: Placement.objects.get().state, "lost")


async def test_lease_snapshot_makes_placements_what_the_engine_holds(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer)
        await peer.say(batch(lease("gone"), lease("kept")))
        await peer.next_of(EventsCommitted)
        await peer.say(LeaseSnapshot(incarnation="incarnation-1", leases=(lease("kept"), lease("missed"))))
        states = {"gone": "lost", "kept": "held", "missed": "held"}
        await eventually(lambda: dict(Placement.objects.values_list("id", "state")), states)


async def test_engine_given_up_as_silent_must_hello_again(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer)
        await ask(lambda: Engine.objects.update(reported_state="silent"))
        await peer.say(status())
        assert await peer.next_close() == 1013


async def test_revoked_token_closes_the_socket(server_url: str, agent_secret: str) -> None:
    async with agent_socket(server_url, agent_secret) as peer:
        await greet(peer)
        await ask(lambda: revoke_token(ApiToken.objects.get(kind="agent"), actor="test"))
        assert "revoked" in (await peer.next_of(Refused)).reason
    with pytest.raises(aiohttp.WSServerHandshakeError):
        async with agent_socket(server_url, agent_secret):
            pass


async def test_frame_over_the_limit_closes_the_socket(
    server_url: str, agent_secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.fleet.sockets.MAX_FRAME_CHARS", 1000)
    async with agent_socket(server_url, agent_secret) as peer:
        await peer.socket.send_str(" " * 1001)
        assert await peer.next_close() == 1009
