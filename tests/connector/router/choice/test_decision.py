"""The decision itself: turns that decode computes alone by policy, and what traces and operators are told."""

import json
from typing import Any

import pytest

from connector.protocol import Decision, PolicyPatch, PolicyValues, Role
from connector.router.choice.choose import Candidate, Choice, Why, WhyNot
from connector.router.choice.costs import Cost
from connector.router.choice.plan import Plan
from connector.router.choice.sizes import PromptSize, size_of
from connector.router.choice.telling import MAX_REJECTED, attributes_of, header_of
from connector.router.requests import Endpoint, parse_request
from tests.connector.router.choice.fleets import chat, lease_of, placed
from tests.connector.router.conftest import API_KEY, MODEL, OTHER_KEY, Scene, assistant, user
from tests.connector.router.fake_engine import error_response
from tests.connector.router.test_failures import refusing
from tests.connector.router.test_tracing import spans_of, values
from tests.connector.router.waiting import eventually

CHAT = "/v1/chat/completions"
LONG_TEXT = "word " * 600
HEADER = "X-Backhaul-Choice"


@pytest.fixture
async def counting(scene: Scene) -> Scene:
    """Engines count tokens about as they are in ``LONG_TEXT``, two decode engines."""
    await scene.add_engine("d1", Role.DECODE)
    for engine in scene.engines:
        engine.num_prompt_tokens = 750
    await scene.publish()
    await scene.until_connected()
    return scene


async def recorded(scene: Scene, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """One turn, its lease known; its line of the access log."""
    before = len(scene.live.book)
    await scene.chat(messages)
    await eventually(lambda: len(scene.live.book) >= max(1, before), "a lease is known")
    return await eventually(
        lambda: next((x for x in reversed(scene.access_lines()) if "turn" in x), {}), "it is logged"
    )


@pytest.mark.parametrize("scope", ["fleet", "model", "tenant", "session"])
async def test_decode_appends_short_turns_itself_where_the_policy_says_so(counting: Scene, scope: str) -> None:
    patch = PolicyPatch(decode_local_max_new_tokens=200)
    if scope == "fleet":
        counting.values = PolicyValues(decode_local_max_new_tokens=200)
    counting.model_patches = {MODEL: patch} if scope == "model" else {}
    counting.tenant_patches = {"default": patch} if scope == "tenant" else {}
    await counting.publish()
    messages = [user(LONG_TEXT)]
    first = await recorded(counting, messages)
    if scope == "session":
        counting.session_patches = {first["session"]: patch}
        await counting.publish()
    assert (len(counting.prefill.received), first["prefill_engine"]) == (1, "p0")
    messages += [assistant("Hello you"), user("short")]
    second = await recorded(counting, messages)
    assert (len(counting.prefill.received), second["prefill_engine"], second["decision"]) == (1, "", "decode_local")
    leg = next(engine for engine in counting.engines if engine.name == second["decode_engine"]).received[-1]
    assert leg.envelope is not None
    assert (leg.envelope.reason_without_offer, leg.offer) == (Decision.DECODE_LOCAL, None)
    assert counting.metric('decode_alone_total{reason="decode_local"}') == 1
    messages += [assistant("Hello you"), user(LONG_TEXT)]
    third = await recorded(counting, messages)
    assert (len(counting.prefill.received), third["prefill_engine"]) == (2, "p0")


async def test_without_the_policy_every_turn_has_its_prefill_leg(scene: Scene) -> None:
    messages = [user("hi")]
    for number in range(3):
        await recorded(scene, messages)
        messages += [assistant("Hello you"), user(f"more {number}")]
    assert len(scene.prefill.received) == 3


async def test_turn_that_leaves_its_holder_is_not_short_any_more(counting: Scene) -> None:
    """What decode would have to compute counts, not what the client added."""
    counting.values = PolicyValues(decode_local_max_new_tokens=60)
    await counting.publish()
    messages = [user(LONG_TEXT)]
    first = await recorded(counting, messages)
    counting.draining = {first["decode_engine"]}
    await counting.publish()
    second = await recorded(counting, [*messages, assistant("Hello you"), user("short")])
    assert second["decode_engine"] != first["decode_engine"]
    assert len(counting.prefill.received) == 2
    assert counting.prefill.received[-1].offer is not None


async def test_short_turn_whose_engine_fails_is_computed_elsewhere(counting: Scene) -> None:
    counting.values = PolicyValues(decode_local_max_new_tokens=200)
    await counting.publish()
    first = await recorded(counting, [user(LONG_TEXT)])
    holder = next(engine for engine in counting.engines if engine.name == first["decode_engine"])
    await holder.stop_serving()
    second = await recorded(counting, [user(LONG_TEXT), assistant("Hello you"), user("short")])
    assert (second["status"], second["decision"]) == (200, "decode_local")
    assert second["decode_engine"] not in ("", holder.name)


async def test_operators_are_told_the_choice_and_nobody_else_is(scene: Scene) -> None:
    scene.operators = {OTHER_KEY}
    await scene.add_engine("d1", Role.DECODE)
    await scene.publish()
    for key, is_told in ((API_KEY, False), (OTHER_KEY, True)):
        for stream in (False, True):
            body = {"model": MODEL, "messages": [user("hi")], "stream": stream}
            async with scene.post(CHAT, body, key, X_Backhaul_Choice="tell me") as response:
                assert response.status == 200
                told = response.headers.get(HEADER)
                await response.read()
            assert (told is not None) == is_told
            if told is not None:
                assert {"d0", "d1", "p0"} <= set(told.replace("=", " ").split())
    scene.operators = set()
    await scene.publish()
    async with scene.post(CHAT, {"model": MODEL, "messages": [user("hi")]}, OTHER_KEY) as response:
        assert HEADER not in response.headers


async def test_errors_of_decode_tell_operators_too(scene: Scene) -> None:
    scene.operators = {API_KEY}
    await scene.publish()

    async def refuse(request: object, received: object) -> Any:
        return error_response(422, "no")

    scene.decode.script = refuse
    async with scene.post(CHAT, {"model": MODEL, "messages": [user("hi")]}) as response:
        assert (response.status, "d0" in response.headers[HEADER]) == (422, True)


async def test_operators_are_told_who_refused(scene: Scene) -> None:
    scene.operators = {OTHER_KEY}
    await scene.publish()
    scene.prefill.script = refusing(400)
    async with scene.post(CHAT, {"model": MODEL, "messages": [user("hi")]}, OTHER_KEY) as response:
        assert (response.status, response.headers[HEADER]) == (400, "decode=d0 only; prefill=p0 only")
    async with scene.post(CHAT, {"model": MODEL, "messages": [user("hi")]}, API_KEY) as response:
        assert (response.status, HEADER in response.headers) == (400, False)


async def test_place_span_has_the_choice_and_what_was_rejected(scene: Scene) -> None:
    await scene.add_engine("d1", Role.DECODE)
    await scene.publish()
    await scene.chat([user("hi")])
    told = values((await spans_of(scene, 4))["place"])
    chosen, rejected = str(told["backhaul.decode_chosen"]), str(told["backhaul.decode_rejected"])
    assert {chosen.split(maxsplit=1)[0], rejected.split(maxsplit=1)[0]} == {"d0", "d1"}
    assert told["backhaul.prefill_chosen"] == "p0"
    assert told["backhaul.prefill_why"] == "only"
    assert (told["backhaul.estimated_prompt_tokens"], told["backhaul.estimated_common_tokens"]) != (0, None)


def test_what_is_told_is_bounded_and_ascii() -> None:
    rejected = tuple((Candidate("e" * 128, Cost(queue=float(i))), WhyNot.COSTLIER) for i in range(100))
    choice = Choice(Candidate("d" * 128, Cost()), Why.CHEAPEST, rejected)
    plan = Plan(lambda: PromptSize(10**7, 10**6, 10**6), decode=choice, prefill=choice, is_decode_local=True)
    assert plan.size.num_tokens == 10**6
    header = header_of(plan)
    assert header.isascii()
    assert header.isprintable()
    assert len(header) < 6000
    assert f"and {100 - MAX_REJECTED} more" in header
    assert all(len(str(value)) < 2500 for value in attributes_of(plan).values())


def test_size_counts_what_no_lease_covers() -> None:
    request = chat("a" * 4000, "b" * 400, "c" * 400)
    cold = size_of(request, placed(), 0.25)
    assert cold.num_tokens == pytest.approx(1200, rel=0.05)
    assert cold.num_common == 0
    grown = placed(lease=lease_of("d0", 1100), num_common=1, is_continued=True)
    assert size_of(request, grown, 0.25).num_common == 1100
    assert size_of(request, grown, 0.25).num_tokens == pytest.approx(1100 + 108, abs=3)
    branch = placed(lease=lease_of("d0", 5000), num_common=1)
    assert size_of(request, branch, 0.25).num_common == pytest.approx(1000, rel=0.05)
    small = placed(lease=lease_of("d0", 64), num_common=1)
    assert size_of(request, small, 0.25).num_common == 64


@pytest.mark.parametrize(
    ("prompt", "num_tokens", "num_common"), [("x" * 4096, 1025, 64), (list(range(1000)), 1000, 32)]
)
def test_size_of_texts_and_token_ids(prompt: Any, num_tokens: int, num_common: int) -> None:
    """The first chunk is 256 bytes: of UTF-8, or of eight for each token id."""
    body = json.dumps({"model": MODEL, "prompt": prompt}).encode()
    request = parse_request(Endpoint.COMPLETIONS, body, {})
    size = size_of(request, placed(lease=lease_of("d0", 500), num_common=1), 0.25)
    assert size.num_tokens == pytest.approx(num_tokens, abs=2)
    assert size.num_common == num_common
    continued = size_of(request, placed(lease=lease_of("d0", 500), num_common=1, is_continued=True), 0.25)
    assert continued.num_common == 500
