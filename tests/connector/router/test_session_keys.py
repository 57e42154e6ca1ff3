"""The session key: where it is looked for, in which order, and that it never leaves its tenant."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.router.requests import Endpoint, parse_request
from connector.router.requests.session_key import AGENT_HEADERS, MAX_CLIENT_KEY_CHARS
from connector.router.session import SessionKeys
from tests.connector.router.conftest import OTHER_KEY, Scene, assistant, user
from tests.connector.router.fake_engine import MODEL, Received

CLAUDE_LEGACY = "user_0123abcd_account__session_57a121ec-f78c-48c3-a745-e3036a3ecc33"
CLAUDE_NOW = json.dumps({"device_id": "d", "account_uuid": "", "session_id": "54c1eb09-bc4c-4d2f-98eb-6d2ab2d5e2fe"})


def content(endpoint: Endpoint) -> dict[str, Any]:
    return {"input": "hi"} if endpoint is Endpoint.RESPONSES else {"messages": [user("hi")], "max_tokens": 5}


def key_of(body: dict[str, Any], endpoint: Endpoint = Endpoint.CHAT, **headers: str) -> str:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return parse_request(endpoint, json.dumps({**content(endpoint), **body}).encode(), given).client_key


def test_the_first_source_that_says_anything_counts() -> None:
    body: dict[str, Any] = {"conversation_id": "a", "metadata": {"user_id": CLAUDE_LEGACY}, "prompt_cache_key": "f"}
    headers = {"X_Session_ID": "b", "X_Claude_Code_Session_Id": "d"}
    expected = ["a", "b", "d", "57a121ec-f78c-48c3-a745-e3036a3ecc33", "f", ""]
    found = [key_of(body, **headers)]
    for source in (body, headers, headers, body, body):
        del source[next(iter(source))]
        found.append(key_of(body, **headers))
    assert found == expected


@pytest.mark.parametrize("header", AGENT_HEADERS)
@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES])
def test_header_of_an_agent_is_a_key_in_every_api(header: str, endpoint: Endpoint) -> None:
    body = json.dumps(content(endpoint)).encode()
    assert parse_request(endpoint, body, {header: "s1"}).client_key == "s1"
    for odd in ("", "x" * (MAX_CLIENT_KEY_CHARS + 1), "\udcff"):
        assert parse_request(endpoint, body, {header: odd}).client_key == ""


@pytest.mark.parametrize(
    ("user_id", "key"),
    [
        (CLAUDE_LEGACY, "57a121ec-f78c-48c3-a745-e3036a3ecc33"),
        (CLAUDE_NOW, "54c1eb09-bc4c-4d2f-98eb-6d2ab2d5e2fe"),
        ("user-7", ""),
        ("user_1_account_2_session_", ""),
        ('{"session_id": 7}', ""),
        ('{"session_id": ["a"]}', ""),
        ("{", ""),
        ("[]", ""),
        (7, ""),
        (None, ""),
        ("x_session_" + "y" * 600, ""),
        ('{"session_id": "\\udcff"}', ""),
    ],
)
def test_only_the_session_part_of_a_user_id_is_a_key(user_id: Any, key: str) -> None:
    assert key_of({"metadata": {"user_id": user_id}}, Endpoint.MESSAGES) == key


@pytest.mark.parametrize("metadata", [None, [], "x", {}, {"user_id": {}}])
def test_odd_metadata_is_no_key(metadata: Any) -> None:
    assert key_of({"metadata": metadata}, Endpoint.MESSAGES) == ""


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=600)


@given(one=KEYS, other=KEYS, tenants=st.lists(KEYS, min_size=2, max_size=2, unique=True))
def test_sessions_and_salts_of_two_tenants_never_meet(one: str, other: str, tenants: list[str]) -> None:
    keys = SessionKeys(b"k" * 32)
    ada, grace = tenants
    assert keys.session_id(ada, one) != keys.session_id(grace, other)
    assert keys.cache_salt(ada) != keys.cache_salt(grace)
    assert keys.session_id(ada, one) not in (keys.cache_salt(ada), keys.cache_salt(grace))
    assert (keys.session_id(ada, one) == keys.session_id(ada, other)) == (one == other)


def facts(received: Received) -> tuple[str, str | None]:
    assert received.envelope is not None
    return received.envelope.session_id, received.offer


FOREIGN_KEYS = [
    {"conversation_id": "shared"},
    {"prompt_cache_key": "shared"},
    {"metadata": {"user_id": CLAUDE_NOW}},
]


@pytest.mark.parametrize("body", FOREIGN_KEYS)
async def test_another_tenants_key_and_very_words_reach_nothing(scene: Scene, body: dict[str, Any]) -> None:
    messages = [user("my secret"), assistant("Hello you"), user("more")]
    await scene.chat(messages[:1], **body)
    await scene.until_leased(1)
    await scene.chat(messages, OTHER_KEY, **body)
    await scene.until_leased(2)
    await scene.chat(messages, **body)
    (mine, none), (theirs, foreign), (mine_again, own) = [facts(leg) for leg in scene.prefill.received]
    assert mine == mine_again != theirs
    assert (none, foreign) == (None, None)
    assert own is not None
    salts = [(p.body["cache_salt"], d.body["cache_salt"]) for p, d in _legs(scene)]
    assert all(prefill == decode for prefill, decode in salts)
    assert salts[0] == salts[2] != salts[1]


def _legs(scene: Scene) -> list[tuple[Received, Received]]:
    return list(zip(scene.prefill.received, scene.decode.received, strict=True))


async def test_sub_agents_of_one_session_reuse_what_they_share(scene: Scene) -> None:
    """Their prompts part after the common start; each goes on from its own."""
    system = {"role": "system", "content": "You are terse."}
    header = {"X_Claude_Code_Session_Id": "s1"}
    for text in ("plan", "search"):
        await _send(scene, [system, user(text)], header)
    await scene.until_leased(2)
    for text in ("plan", "search"):
        await _send(scene, [system, user(text), assistant("Hello you"), user("go on")], header)
    sessions = [received.envelope.session_id for received in scene.prefill.received if received.envelope]
    turns = [received.envelope.turn_id for received in scene.prefill.received if received.envelope]
    assert len(set(sessions)) == 1
    assert [received.offer for received in scene.prefill.received[2:]] == [f"d-offer-{turn}" for turn in turns[:2]]


async def _send(scene: Scene, messages: list[dict[str, Any]], headers: dict[str, str]) -> None:
    async with scene.post("/v1/chat/completions", {"model": MODEL, "messages": messages}, **headers) as response:
        assert response.status == 200
        await response.read()
