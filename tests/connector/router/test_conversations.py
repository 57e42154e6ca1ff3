"""Sessions and leases: which conversation a turn belongs to, and what it may reuse."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from connector.protocol import Decision, EngineState, LeaseState, PolicyPatch, PolicyValues, Role
from connector.router import placement
from tests.connector.router.conftest import API_KEY, MODEL, OTHER_KEY, Scene, assistant, user
from tests.connector.router.fake_engine import Received
from tests.connector.router.sse import reply_stream
from tests.connector.router.waiting import eventually

SYSTEM = {"role": "system", "content": "You are terse."}


def facts(received: Received) -> tuple[str, str, str | None]:
    """Session, turn and offer of a prefill leg."""
    assert received.envelope is not None
    return received.envelope.session_id, received.envelope.turn_id, received.offer


async def say(scene: Scene, messages: list[dict[str, Any]], text: str, **fields: Any) -> tuple[str, str, str | None]:
    """One turn; appends question and answer, returns what the prefill leg carried."""
    messages.append(user(text))
    await scene.chat(messages, **fields)
    messages.append(assistant("Hello you"))
    return facts(scene.prefill.received[-1])


async def test_fifty_turns_without_a_pause_each_reuse_the_turn_before(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "NOTICE_WAIT_SECONDS", 10.0)  # this machine may be busy
    scene.decode.grant_delay = 0.01
    messages = [SYSTEM]
    turns = [await say(scene, messages, f"question {number}") for number in range(50)]
    assert len({session for session, _, _ in turns}) == 1
    assert [offer for _, _, offer in turns] == [None, *(f"d-offer-{turn}" for _, turn, _ in turns[:-1])]
    await eventually(lambda: len(scene.control.turns) == 50, "the turns are recorded")
    assert [turn.index for turn in scene.control.turns] == list(range(50))
    assert [turn.parent_turn_id for turn in scene.control.turns] == ["", *(t.turn_id for t in scene.control.turns[:-1])]


async def test_two_conversations_that_share_a_start_find_their_own_leases(scene: Scene) -> None:
    ada: list[dict[str, Any]] = [SYSTEM]
    grace: list[dict[str, Any]] = [SYSTEM]
    first = await asyncio.gather(say(scene, ada, "Open the book."), say(scene, grace, "Open the book."))
    assert len({session for session, _, _ in (facts(r) for r in scene.prefill.received)}) == 2, first
    await scene.until_leased(2)
    for number in range(3):
        await say(scene, ada, f"Ada {number}")
        await say(scene, grace, f"Grace {number}")
    legs = [facts(received) for received in scene.prefill.received]
    sessions = {session for session, _, _ in legs}
    assert len(sessions) == 2
    for session in sessions:
        own = [(turn, offer) for s, turn, offer in legs if s == session]
        assert len(own) == 4
        # The second turn may find more in the other's lease: equal replies make a longer common prefix.
        assert own[1][1] is not None
        assert [offer for _, offer in own[2:]] == [f"d-offer-{turn}" for turn, _ in own[1:-1]]


async def test_same_question_but_another_answer_tells_two_conversations_apart(scene: Scene) -> None:
    """Identical prompts, different replies: the quoted reply decides, in whatever order they go on."""
    scripts = {"first": reply_stream(["red"]), "second": reply_stream(["blue", " sky"])}
    started = {}
    for name, events in scripts.items():
        scene.decode.events = events
        await scene.chat([user("Name a colour.")], stream=True)
        started[name] = facts(scene.prefill.received[-1])
    await scene.until_leased(2)
    for name, reply in (("first", "red"), ("second", "blue sky")):
        await scene.chat([user("Name a colour."), assistant(reply), user("Why?")])
        session, _, offer = facts(scene.prefill.received[-1])
        assert session == started[name][0]
        assert offer == f"d-offer-{started[name][1]}"


async def test_longest_prefix_wins_and_a_branch_gets_its_own_session(scene: Scene) -> None:
    messages = [SYSTEM]
    sessions = [await say(scene, messages, f"question {number}") for number in range(3)]
    branch = [*messages[:3], user("another way")]
    await scene.chat(branch)
    session, _, offer = facts(scene.prefill.received[-1])
    assert session != sessions[0][0]
    assert offer in {f"d-offer-{turn}" for _, turn, _ in sessions}
    await scene.until_leased(4)
    await scene.chat([*branch, assistant("Hello you"), user("on")])
    assert facts(scene.prefill.received[-1])[0] == session


async def test_retry_of_a_failed_turn_stays_in_its_session(scene: Scene) -> None:
    messages = [SYSTEM]
    session, first, _ = await say(scene, messages, "one")

    async def refuse(request: web.BaseRequest, received: Received) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    scene.decode.script = refuse
    body = {"model": MODEL, "messages": [*messages, user("lost")]}
    async with scene.post("/v1/chat/completions", body) as response:
        assert response.status == 502
    scene.decode.script = None
    second = await say(scene, messages, "two")
    assert second[0] == session
    assert second[2] == f"d-offer-{first}"


@pytest.mark.parametrize("how", ["conversation_id", "X_Session_ID"])
async def test_client_key_binds_turns_of_one_tenant_only(scene: Scene, how: str) -> None:
    async def ask(key: str, client_key: str) -> tuple[str, str, str | None]:
        fields = {"conversation_id": client_key} if how == "conversation_id" else {}
        headers = {} if fields else {how: client_key}
        body = {"model": MODEL, "messages": [user("hi there")], **fields}
        async with scene.post("/v1/chat/completions", body, key, **headers) as response:
            assert response.status == 200
        return facts(scene.prefill.received[-1])

    first = await ask(API_KEY, "mine")
    await scene.until_leased(1)
    again, other = await ask(API_KEY, "mine"), await ask(OTHER_KEY, "mine")
    assert again[0] == first[0]
    assert again[2] == f"d-offer-{first[1]}"
    assert other[0] != first[0]
    assert other[2] is None
    salts = [received.body["cache_salt"] for received in scene.prefill.received]
    assert salts[0] == salts[1] != salts[2]


async def test_tenants_never_meet_by_content(scene: Scene) -> None:
    await scene.chat([SYSTEM, user("secret")])
    await scene.until_leased(1)
    await scene.chat([SYSTEM, user("secret"), assistant("Hello you"), user("more")], OTHER_KEY)
    (first, _, _), (second, _, offer) = map(facts, scene.prefill.received)
    assert second != first
    assert offer is None


async def test_changed_first_line_still_offers_the_sessions_lease_for_the_engine_to_verify(scene: Scene) -> None:
    for minute in (1, 2):
        system = {"role": "system", "content": f"It is 10:0{minute}."}
        await scene.chat([system, user("hi")], conversation_id="clock")
        await scene.until_leased(minute)
    first, second = map(facts, scene.prefill.received)
    assert second[2] == f"d-offer-{first[1]}"


async def test_other_model_or_tools_share_nothing(still_scene: Scene) -> None:
    scene = still_scene
    scene.decode.models = scene.prefill.models = [MODEL, "lora"]
    await scene.start_router()
    await scene.chat([user("hi")])
    await scene.until_leased(1)
    longer = [user("hi"), assistant("Hello you"), user("more")]
    tools = [{"type": "function", "function": {"name": "f"}}]
    await scene.chat(longer, tools=tools)
    await scene.chat(longer, model="lora")
    assert [facts(received)[2] for received in scene.prefill.received] == [None] * 3


async def test_equal_messages_in_other_notation_are_the_same(scene: Scene) -> None:
    await scene.chat([{"role": "user", "content": "hi"}])
    await scene.until_leased(1)
    raw = b'{"messages":[{"content":"hi", "name":null,"role":"user"},{"role":"assistant","content":"x"},'
    raw += b'{"role":"user","content":"y"}],"model":"tiny"}'
    async with scene.post("/v1/chat/completions", raw) as response:
        assert response.status == 200
    assert facts(scene.prefill.received[-1])[2] is not None


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("released", Decision.NO_PLACEMENT),
        ("expired", Decision.EXPIRED),
        ("about to expire", Decision.EXPIRED),
        ("engine restarted", Decision.SOURCE_LOST),
        ("engine down", Decision.SOURCE_LOST),
        ("engine gone", Decision.SOURCE_LOST),
        ("policy", Decision.DISABLED),
        ("tenant policy", Decision.DISABLED),
    ],
)
async def test_reason_says_why_a_lease_is_not_offered(scene: Scene, how: str, reason: Decision) -> None:
    spare = await scene.add_engine("d1", Role.DECODE)
    scene.draining.add("d1")
    await scene.publish()
    if how == "about to expire":
        scene.decode.ttl = 4.5
    messages = [SYSTEM]
    session, turn, _ = await say(scene, messages, "one")
    await scene.until_leased(1)
    feed, book = scene.decode.feed, scene.live.book
    scene.draining.discard("d1")
    if how in ("released", "expired"):
        await feed.end(f"lease-{turn}", LeaseState(how))
        await eventually(lambda: len(book) == 0, "the lease is gone")
    elif how == "engine restarted":
        await feed.change(EngineState.READY, "d0-2")
        await eventually(lambda: len(book) == 0, "the lease is gone")
        scene.live.fleet.get("d0").health.succeed()  # type: ignore[union-attr]  # its trial is over
    elif how == "engine down":
        await feed.change(EngineState.DOWN, feed.incarnation)
        await eventually(lambda: not scene.live.fleet.get("d0").is_up, "the engine is seen down")  # type: ignore[union-attr]
    elif how == "engine gone":
        scene.engines.remove(scene.decode)
    elif how == "policy":
        scene.values = PolicyValues(bidirectional_kv_xfer=False)
    elif how == "tenant policy":
        scene.tenant_patches["default"] = PolicyPatch(bidirectional_kv_xfer=False)
    await scene.publish()
    again = await say(scene, messages, "two")
    envelope = scene.prefill.received[-1].envelope
    assert envelope is not None
    assert (again[0], again[2], envelope.reason_without_offer) == (session, None, reason)
    assert scene.metric(f'offers_withheld_total{{reason="{reason.value}"}}') >= 1
    is_moved = how.startswith("engine")
    assert len(spare.received) == is_moved, "an engine that has just come back, without its KV, isn't flooded"
    if how == "engine gone":
        await scene.decode.stop()


async def test_policy_of_tenant_and_session_travels_and_the_narrower_wins(scene: Scene) -> None:
    session, *_ = await say(scene, [SYSTEM], "one", conversation_id="c")
    scene.model_patches[MODEL] = PolicyPatch(kv_recompute_threshold=1)
    scene.tenant_patches["default"] = PolicyPatch(kv_recompute_threshold=2, kv_pull_deadline=3.0, pinned_kv_limit=0.1)
    scene.session_patches[session] = PolicyPatch(kv_recompute_threshold=4)
    await scene.publish()
    await say(scene, [SYSTEM], "two", conversation_id="c")
    for received in (scene.prefill.received[-1], scene.decode.received[-1]):
        assert received.envelope is not None
        assert received.envelope.policy == PolicyPatch(kv_recompute_threshold=4, kv_pull_deadline=3.0)
    assert scene.prefill.received[0].envelope.policy is None  # type: ignore[union-attr]


async def test_holder_of_the_lease_is_preferred_unless_it_drains(scene: Scene) -> None:
    spare = await scene.add_engine("d1", Role.DECODE)
    await scene.publish()
    messages = [SYSTEM]
    _, turn, _ = await say(scene, messages, "one")
    holder, idle = (scene.decode, spare) if scene.decode.received else (spare, scene.decode)
    for number in range(3):
        await say(scene, messages, f"more {number}")
    assert (len(holder.received), len(idle.received)) == (4, 0)
    scene.draining.add(holder.name)
    await scene.publish()
    *_, offer = await say(scene, messages, "elsewhere")
    assert len(idle.received) == 1
    assert offer is not None
    assert turn not in offer
