"""Any request, at every path that makes turns: it is served, or refused with a 4xx that the client can read, and never
a crash; and what a client may not set reaches no engine, however it is written."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.router.errors import ApiError
from connector.router.keyring import SessionKeyring
from connector.router.legs import decode_body, prefill_body
from connector.router.placement import _prompt
from connector.router.requests import Endpoint, TurnRequest, parse_request
from connector.router.requests.session_key import AGENT_HEADERS, SESSION_HEADER
from connector.router.requests.stripping import NESTED, STRIPPED
from connector.signing import FleetKey
from tests.connector.router.conftest import user

KEYRING = SessionKeyring(FleetKey({"k1": bytes(32)}))
FORGED = "forged-by-the-client"

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PARTS = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
SHARED = {"model": "tiny", "stream": True, "metadata": {"user_id": "u_session_1"}, "vllm_xargs": {"a": [{"b": 1}]}}
VALID: dict[Endpoint, dict[str, Any]] = {
    Endpoint.CHAT: {
        **SHARED,
        "messages": [
            {"role": "system", "content": PARTS},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "4"},
            user("go on"),
        ],
        "tools": [TOOL],
        "n": 1,
        "max_tokens": 5,
    },
    Endpoint.COMPLETIONS: {**SHARED, "prompt": [1, 2, 3], "echo": False, "logprobs": 1, "max_tokens": 5},
    Endpoint.RESPONSES: {
        **SHARED,
        "instructions": "be brief",
        "input": [{"role": "user", "content": PARTS}, {"type": "function_call", "id": "x", "arguments": "{}"}],
        "tools": [{"type": "mcp"}],
        "previous_response_id": None,
    },
    Endpoint.MESSAGES: {
        **SHARED,
        "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "tool_result", "content": PARTS}]}],
        "tools": [{"name": "f", "input_schema": {}}],
        "max_tokens": 5,
    },
}

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
NAMES = st.sampled_from(
    sorted({*STRIPPED, *NESTED, "prompt_cache_key", "metadata", "n", "prompt_embeds", "input", "system", "echo"})
)
HEADERS = st.dictionaries(
    st.sampled_from([SESSION_HEADER, *AGENT_HEADERS]), st.text(max_size=20) | st.just("\udc80") | st.just("x" * 600)
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a JSON value with each of its keys or positions."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from places(value[key])


@st.composite
def nearly_valid(draw: st.DrawFn) -> tuple[Endpoint, dict[str, Any]]:
    """A valid request in which a few values, at any depth, are others or are gone, and a few members are more."""
    endpoint = draw(st.sampled_from(list(Endpoint)))
    body = copy.deepcopy(VALID[endpoint])
    for _ in range(draw(st.integers(0, 3))):
        container, key = draw(st.sampled_from(list(places(body)) or [(body, "model")]))
        if draw(st.booleans()):
            container[key] = draw(JSON)
        else:
            container.pop(key, None) if isinstance(container, dict) else container.pop(key)
    for name in draw(st.lists(NAMES, max_size=3)):
        body[name] = draw(JSON)
    return endpoint, body


def read(endpoint: Endpoint, body: bytes, headers: dict[str, str] | None = None) -> TurnRequest | ApiError:
    """As the router does it, up to the prompt's hashes; any other exception is a crash."""
    try:
        request = parse_request(endpoint, body, headers or {})
        for use in KEYRING.uses():
            _prompt(use, "tenant", request, "tiny")
    except ApiError as error:
        refusal = error
    else:
        return request
    assert 400 <= refusal.status < 500
    for in_anthropics_shape in (False, True):
        assert orjson.loads(refusal.body(in_anthropics_shape))["error"]["message"] == refusal.message
    return refusal


def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), "a member stands there twice, and who reads the first one is fooled"
    return dict(pairs)


def legs_of(request: TurnRequest) -> list[dict[str, Any]]:
    prefill = prefill_body(request, "salt", "envelope", None)
    decode = decode_body(request, "salt", "envelope", "offer", "resp_1")
    bare = decode_body(request, "salt", None, None)
    return [json.loads(leg, object_pairs_hook=no_twins) for leg in (prefill, decode, bare)]


def check_legs(request: TurnRequest) -> None:
    prefill, decode, bare = legs_of(request)
    for leg in (prefill, decode, bare):
        assert leg["cache_salt"] == "salt"
        for name in NESTED:
            inside = {key for _, key in places(leg[name])} if name in leg else set()
            assert not STRIPPED & {key for key in inside if isinstance(key, str)}
    ours = {"envelope": "envelope", "offer": None}, {"envelope": "envelope", "offer": "offer"}
    assert (prefill["kv_transfer_params"]["backhaul"], decode["kv_transfer_params"]["backhaul"]) == ours
    assert STRIPPED & prefill.keys() == {"cache_salt", "kv_transfer_params"}
    assert STRIPPED & decode.keys() == {"cache_salt", "kv_transfer_params", "request_id"}
    assert STRIPPED & bare.keys() == {"cache_salt"}
    assert decode["request_id"] == "resp_1"
    assert prefill["stream"] is False


@pytest.mark.parametrize("endpoint", Endpoint)
def test_valid_requests_are_what_the_others_are_made_of(endpoint: Endpoint) -> None:
    request = read(endpoint, json.dumps(VALID[endpoint]).encode())
    assert isinstance(request, TurnRequest)
    check_legs(request)


@given(nearly_valid(), HEADERS)
def test_nearly_valid_request_is_served_or_refused(
    made: tuple[Endpoint, dict[str, Any]], headers: dict[str, str]
) -> None:
    endpoint, body = made
    request = read(endpoint, json.dumps(body).encode(), headers)
    if isinstance(request, TurnRequest):
        check_legs(request)


@given(st.sampled_from(list(Endpoint)), JSON)
def test_any_json_value_is_served_or_refused(endpoint: Endpoint, value: Any) -> None:
    request = read(endpoint, json.dumps(value).encode())
    if isinstance(request, TurnRequest):
        check_legs(request)


@given(st.data(), st.sampled_from(list(Endpoint)), st.sampled_from(sorted(STRIPPED)))
def test_stripped_member_is_stripped_however_it_is_written(data: st.DataObject, endpoint: Endpoint, name: str) -> None:
    """Twice, with escapes, with blanks around it, or deep in a member that engines look into."""
    escaped = "".join(f"\\u{ord(char):04x}" if data.draw(st.booleans()) else char for char in name)
    blank = data.draw(st.sampled_from(["", " ", "\n\t"]))
    forged = f'{blank}"{escaped}"{blank}:{blank}"{FORGED}"'
    if name == "conversation_id":
        forged = forged.replace(FORGED, "")  # the client's own word for its conversation: taken, never passed on
    within = data.draw(st.sampled_from(NESTED))
    deep = '{"a":[' * (depth := data.draw(st.integers(0, 20))) + "{" + forged + "}" + "]}" * depth
    members = [forged, *(f'"{key}":{json.dumps(value)}' for key, value in VALID[endpoint].items() if key != within)]
    members = data.draw(st.permutations([*members, forged, f'"{within}":{deep}']))
    request = read(endpoint, ("{" + ",".join(members) + "}").encode())
    assert isinstance(request, TurnRequest)
    check_legs(request)
    assert all(FORGED not in json.dumps(leg) for leg in legs_of(request))


@given(st.sampled_from(list(Endpoint)), st.data())
def test_bytes_that_are_nearly_json_are_served_or_refused(endpoint: Endpoint, data: st.DataObject) -> None:
    body = bytearray(json.dumps(VALID[endpoint]).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body)))
        body[place : place + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=3) | st.just(b'"') | st.just(b"9" * 400)
        )
    request = read(endpoint, bytes(body))
    if isinstance(request, TurnRequest):
        check_legs(request)


@pytest.mark.parametrize("depth", [100, 253, 254, 255, 1_023, 1_024, 50_000])
@pytest.mark.parametrize("endpoint", Endpoint)
def test_nesting_of_any_depth_anywhere_is_served_or_refused(endpoint: Endpoint, depth: int) -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}"), ('[{"content":', "}]")):
        deep = opening * depth + "1" + closing * depth
        for name in VALID[endpoint]:
            members = [f'"{key}":{json.dumps(value)}' for key, value in VALID[endpoint].items() if key != name]
            request = read(endpoint, ("{" + ",".join([*members, f'"{name}":{deep}']) + "}").encode())
            if isinstance(request, TurnRequest):
                assert prefill_body(request, "salt", "envelope", None)
                assert decode_body(request, "salt", "envelope", "offer")
