"""Routers that share claims: a conversation goes on at another one before any lease of its last turn is known."""

import asyncio
import logging
from typing import Any

import pytest
from aiohttp import web

from connector.router import placement
from connector.router.assembly import Parts
from connector.router.claims import remote
from tests.connector.router.claims.conftest import Replicas, ValkeyServer
from tests.connector.router.conftest import MODEL, OTHER_KEY, assistant, user
from tests.connector.router.fake_engine import Received
from tests.connector.router.sse import reply_stream
from tests.connector.router.waiting import eventually


def last_leg(replicas: Replicas) -> tuple[str, str, str | None]:
    """Session, turn and offer of the last prefill leg."""
    received = replicas.scene.prefill.received[-1]
    assert received.envelope is not None
    return received.envelope.session_id, received.envelope.turn_id, received.offer


def knows_ended(parts: Parts, turn_id: str) -> bool:
    """Without a lease: from a claim alone."""
    turn = parts.index.get(turn_id)
    return turn is not None and not turn.is_running


async def until_known(replicas: Replicas, turn_id: str) -> None:
    for _, parts in replicas.routers:
        await eventually(lambda p=parts: knows_ended(p, turn_id), "both routers know that the turn ended")  # type: ignore[misc]


async def test_conversation_alternates_between_routers_before_its_leases_are_known(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "NOTICE_WAIT_SECONDS", 20.0)  # this machine may be busy
    scene, messages, turns = replicas.scene, [user("hi")], []
    scene.decode.grants_leases = False
    for number in range(6):
        parts = replicas.put_in_front(number % 2)
        asking = asyncio.create_task(scene.chat(messages))
        if number:
            waiting = len(scene.prefill.received)
            await eventually(lambda p=parts: has_waiter(p), "the turn waits for the notice")  # type: ignore[misc]
            assert len(scene.prefill.received) == waiting
            envelope = scene.decode.received[-1].envelope
            assert envelope is not None
            await scene.decode._grant(envelope)
        await asking
        turns.append(last_leg(replicas))
        await until_known(replicas, turns[-1][1])
        messages += [assistant("Hello you"), user(f"and {number}")]
    assert len({session for session, _, _ in turns}) == 1
    assert [offer for _, _, offer in turns] == [None, *(f"d-offer-{turn}" for _, turn, _ in turns[:-1])]
    await eventually(lambda: len(scene.control.turns) == 6, "the turns are recorded")
    assert sorted(turn.index for turn in scene.control.turns) == list(range(6))


def has_waiter(parts: Parts) -> bool:
    return any(live.notice._waiter is not None for live in parts.index.live.values())


async def test_running_turn_keeps_its_parent_taken_at_the_other_router(replicas: Replicas) -> None:
    """Two continuations of one turn, one at each router, are branches: the second gets a session of its own."""
    scene, start = replicas.scene, [user("hi")]
    gate = asyncio.Event()
    replicas.put_in_front(0)
    await scene.chat(start)
    session, parent, _ = last_leg(replicas)
    for _, parts in replicas.routers:
        await eventually(lambda p=parts: len(p.book) == 1, "both know the lease")  # type: ignore[misc]

    async def hold(request: web.BaseRequest, received: Received) -> web.StreamResponse | None:
        await gate.wait()
        return None

    scene.decode.script = hold
    one = asyncio.create_task(scene.chat([*start, assistant("Hello you"), user("one")]))
    second = replicas.routers[1][1]
    await eventually(lambda: second.metrics.remote_turns.value == 1, "the other router knows of the running turn")
    replicas.put_in_front(1)
    assert second.index.get(parent).continued_by != b""  # type: ignore[union-attr]
    other = asyncio.create_task(scene.chat([*start, assistant("Hello you"), user("another way")]))
    await eventually(lambda: len(scene.prefill.received) == 3, "both branches run")
    gate.set()
    await asyncio.gather(one, other)
    sessions = [leg.envelope.session_id for leg in scene.prefill.received if leg.envelope]
    assert sessions[:2] == [session, session]
    assert sessions[2] != session


async def test_turn_that_failed_leaves_its_parent_free_at_the_other_router(replicas: Replicas) -> None:
    scene, start = replicas.scene, [user("hi")]
    first = replicas.put_in_front(0)
    await scene.chat(start)
    session, parent, _ = last_leg(replicas)
    second = replicas.routers[1][1]
    await eventually(lambda: len(second.book) == 1, "the other router knows the lease")

    async def refuse(request: web.BaseRequest, received: Received) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    scene.decode.script = refuse
    body = {"model": MODEL, "messages": [*start, assistant("Hello you"), user("lost")]}
    async with scene.post("/v1/chat/completions", body) as response:
        assert response.status == 502
    scene.decode.script = None
    _, lost, _ = last_leg(replicas)
    sent, taken = first.metrics.claims.labels("sent"), second.metrics.claims.labels("taken")
    await eventually(lambda: sent.value == taken.value == 6, "the other router heard of both turns to their ends")
    assert second.index.get(lost) is None
    replicas.put_in_front(1)
    await scene.chat([*start, assistant("Hello you"), user("again")])
    assert last_leg(replicas)[0] == session
    assert last_leg(replicas)[2] == f"d-offer-{parent}"
    await eventually(lambda: len(scene.control.turns) == 3, "the turns are recorded")
    assert sorted(turn.index for turn in scene.control.turns) == [0, 1, 2], "no number is given twice"


async def test_same_question_at_two_routers_is_told_apart_by_the_reply(replicas: Replicas) -> None:
    scene, started = replicas.scene, {}
    scene.decode.grants_leases = False
    for number, words in enumerate((["red"], ["blue", " sky"])):
        replicas.put_in_front(number)
        scene.decode.events = reply_stream(words)
        await scene.chat([user("Name a colour.")], stream=True)
        started["".join(words)] = last_leg(replicas)[0]
        await until_known(replicas, last_leg(replicas)[1])
    assert len(set(started.values())) == 2
    for number, reply in enumerate(("blue sky", "red")):
        replicas.put_in_front(number)
        await scene.chat([user("Name a colour."), assistant(reply), user("Why?")])
        assert last_leg(replicas)[0] == started[reply]


async def test_tenants_never_meet_through_claims(replicas: Replicas) -> None:
    scene, messages = replicas.scene, [user("secret")]
    replicas.put_in_front(0)
    await scene.chat(messages)
    session, turn_id, _ = last_leg(replicas)
    await until_known(replicas, turn_id)
    replicas.put_in_front(1)
    await scene.chat([*messages, assistant("Hello you"), user("more")], OTHER_KEY)
    assert last_leg(replicas)[0] != session
    assert last_leg(replicas)[2] is None


async def test_turns_go_on_while_redis_is_gone_and_share_again_when_it_is_back(
    replicas: Replicas, valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    scene, messages = replicas.scene, [user("hi")]
    caplog.set_level(logging.INFO, "connector.router.claims.link")
    replicas.put_in_front(0)
    await scene.chat(messages)
    session, turn_id, _ = last_leg(replicas)
    await until_known(replicas, turn_id)
    valkey.kill()
    await eventually(lambda: not replicas.shares(0) and not replicas.shares(1), "both know that it is gone")
    for number in range(4):
        messages += [assistant("Hello you"), user(f"and {number}")]
        parts = replicas.put_in_front(number % 2)
        await eventually(lambda p=parts, n=number + 1: len(p.book) == n, "the leases come by the feeds")  # type: ignore[misc]
        await scene.chat(messages)
        assert last_leg(replicas)[0] == session
        assert last_leg(replicas)[2] is not None
    valkey.start()
    for number in range(2):
        await replicas.until_sharing(number)
    scene.decode.grants_leases = False
    replicas.put_in_front(0)
    await scene.chat([*messages, assistant("Hello you"), user("back")])
    await until_known(replicas, last_leg(replicas)[1])
    told = [record.getMessage().split()[0] for record in caplog.records]
    assert sorted(told) == ["event=claims_shared"] * 2 + ["event=claims_unshared"] * 2, "one line a change and router"


async def test_turn_that_runs_while_redis_comes_back_is_told_anew(replicas: Replicas, valkey: ValkeyServer) -> None:
    scene, gate = replicas.scene, asyncio.Event()

    async def hold(request: web.BaseRequest, received: Received) -> web.StreamResponse | None:
        await gate.wait()
        return None

    scene.decode.script = hold
    valkey.kill()
    await eventually(lambda: not replicas.shares(0) and not replicas.shares(1), "both know that it is gone")
    replicas.put_in_front(0)
    asking = asyncio.create_task(scene.chat([user("hi")]))
    await eventually(lambda: scene.decode.received, "the turn decodes")
    valkey.start()
    second = replicas.routers[1][1]
    await eventually(lambda: second.metrics.remote_turns.value == 1, "the other router knows of it")
    gate.set()
    await asking
    await eventually(lambda: second.metrics.remote_turns.value == 0, "and of its end")


async def test_router_that_starts_reads_the_last_seconds(replicas: Replicas) -> None:
    scene = replicas.scene
    scene.decode.grants_leases = False
    replicas.put_in_front(0)
    await scene.chat([user("hi")])
    session, turn_id, _ = last_leg(replicas)
    await until_known(replicas, turn_id)
    await replicas.start_one()
    await until_known(replicas, turn_id)
    await scene.chat([user("hi"), assistant("Hello you"), user("more")])
    assert last_leg(replicas)[0] == session


@pytest.mark.parametrize("is_polite", [True, False], ids=["stopped", "killed"])
async def test_claims_of_a_router_that_is_gone_end(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, is_polite: bool
) -> None:
    if not is_polite:
        monkeypatch.setattr(remote, "SILENT_SECONDS", 0.5)
    scene, gate = replicas.scene, asyncio.Event()

    async def hold(request: web.BaseRequest, received: Received) -> web.StreamResponse | None:
        await gate.wait()
        return None

    scene.decode.script = hold
    router, parts = replicas.routers[0]
    assert parts.claims is not None
    replicas.put_in_front(0)
    asking = asyncio.create_task(scene.chat([user("hi")]))
    second = replicas.routers[1][1]
    await eventually(lambda: second.metrics.remote_turns.value == 1, "the other router knows of the running turn")
    (sharing,) = (task for task in router._tasks if task.get_name() == "claims")
    sharing.cancel()
    if is_polite:
        await parts.claims.say_goodbye()
    await eventually(lambda: second.metrics.remote_turns.value == 0, "it is given up")
    assert len(second.index) == 0
    gate.set()
    await asking


async def test_claims_hold_no_prompt_and_the_log_no_password(
    replicas: Replicas, valkey: ValkeyServer, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    from redis.asyncio import Redis

    scene = replicas.scene
    caplog.set_level(logging.DEBUG)
    replicas.put_in_front(0)
    await scene.chat([user("a very private question")], conversation_id="my-own-key")
    await until_known(replicas, last_leg(replicas)[1])
    async with Redis.from_url(valkey.url) as client:
        told = str(await client.xrange("backhaul:claims"))
        assert await client.keys() == [b"backhaul:claims"]
        assert 0 < await client.pttl("backhaul:claims") <= 60_000
    assert "private" not in told
    assert "my-own-key" not in told
    url = f"redis://someone:hunter2@127.0.0.1:{valkey.port}/0"
    settings = scene.settings(redis_url=url, state_dir=tmp_path / "third")
    assert "hunter2" not in repr(settings)
    await scene.start_router(redis_url=url, state_dir=tmp_path / "third")
    third = scene.router
    await eventually(lambda: "claims_unshared" in caplog.text, "the refused password is told")
    assert third is not None
    await third.stop()
    assert "hunter2" not in caplog.text
