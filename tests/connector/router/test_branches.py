"""Branches, retries and parallel sub-agents reuse what they share, in every API that has messages."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.connector.router.conftest import Scene, assistant, user
from tests.connector.router.fake_engine import MODEL
from tests.connector.router.formats import output_message

Body = Callable[[list[str]], dict[str, Any]]


def chat(said: list[str]) -> dict[str, Any]:
    turns = [user(text) if place % 2 == 0 else assistant(text) for place, text in enumerate(said)]
    return {"messages": [{"role": "system", "content": "Be terse."}, *turns]}


def responses(said: list[str]) -> dict[str, Any]:
    turns = [user(text) if place % 2 == 0 else output_message(text) for place, text in enumerate(said)]
    return {"instructions": "Be terse.", "input": turns}


def messages(said: list[str]) -> dict[str, Any]:
    return {"system": "Be terse.", "max_tokens": 8, "messages": chat(said)["messages"][1:]}


APIS = [("/v1/chat/completions", chat), ("/v1/responses", responses), ("/v1/messages", messages)]
KEYS: list[dict[str, str]] = [{}, {"X_Claude_Code_Session_Id": "s1"}]


async def offer_for(scene: Scene, path: str, body: dict[str, Any], key: dict[str, str]) -> str | None:
    async with scene.post(path, {"model": MODEL, **body}, **key) as response:
        assert response.status == 200, await response.read()
        await response.read()
    return scene.prefill.received[-1].offer


def lease_of(scene: Scene, number: int) -> str:
    envelope = scene.decode.received[number].envelope
    assert envelope is not None
    return f"d-offer-{envelope.turn_id}"


@pytest.mark.parametrize("key", KEYS, ids=["plain", "keyed"])
@pytest.mark.parametrize(("path", "say"), APIS)
async def test_each_branch_is_offered_what_shares_most_with_it(
    scene: Scene, path: str, say: Body, key: dict[str, str]
) -> None:
    """A sibling holds the reply too, which the turn that they leave doesn't say of itself."""
    assert await offer_for(scene, path, say(["plan"]), key) is None
    await scene.until_leased(1)
    for number, branch in enumerate(("left", "right", "middle"), 2):
        siblings = [lease_of(scene, one) for one in range(1, number - 1)]
        offer = await offer_for(scene, path, say(["plan", "Hello you", branch]), key)
        assert offer in (siblings or [lease_of(scene, 0)])
        await scene.until_leased(number)
    for number, branch in enumerate(("left", "right", "middle"), 1):
        longer = say(["plan", "Hello you", branch, "Hello you", "on"])
        assert await offer_for(scene, path, longer, key) == lease_of(scene, number)
        await scene.until_leased(4 + number)


@pytest.mark.parametrize("key", KEYS, ids=["plain", "keyed"])
@pytest.mark.parametrize(("path", "say"), APIS)
async def test_retry_reuses_the_whole_prompt(scene: Scene, path: str, say: Body, key: dict[str, str]) -> None:
    await offer_for(scene, path, say(["plan"]), key)
    await scene.until_leased(1)
    assert await offer_for(scene, path, say(["plan"]), key) == lease_of(scene, 0)


@pytest.mark.parametrize(("path", "say"), APIS)
async def test_two_apis_share_no_session_by_content(scene: Scene, path: str, say: Body) -> None:
    """Their prompts are rendered differently, so only a key of the client's ties them together."""
    for number, (other, words) in enumerate(APIS, 1):
        await offer_for(scene, other, words(["plan"]), {})
        await scene.until_leased(number)
    sessions = [leg.envelope.session_id for leg in scene.prefill.received if leg.envelope]
    assert len(set(sessions)) == len(APIS)
    assert [leg.offer for leg in scene.prefill.received] == [None] * len(APIS)
    await offer_for(scene, path, say(["plan", "Hello you", "more"]), {})
    again = scene.prefill.received[-1].envelope
    assert again is not None
    assert again.session_id == sessions[[one for one, _ in APIS].index(path)]
