"""Bad and odd input: a clear 4xx that names the field, never a 500, never another's session."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.router.errors import ApiError
from connector.router.legs import decode_body, prefill_body
from connector.router.requests import Endpoint, TurnRequest, parse_request
from connector.router.requests.session_key import MAX_CLIENT_KEY_CHARS
from connector.router.requests.stripping import STRIPPED
from tests.connector.router.conftest import MODEL, Scene, user

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [user("hi")]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT, b"", 400, None),
        (CHAT, b"{", 400, None),
        (CHAT, b"[1]", 400, None),
        (CHAT, b"null", 400, None),
        (CHAT, b'{"model": "tiny"} x', 400, None),
        (CHAT, b'{"model": "\xff"}', 400, None),
        (CHAT, b'{"model": NaN}', 400, None),
        (CHAT, b"[" * 100_000, 400, None),
        (CHAT, b'{"a":' * 30_000, 400, None),
        (CHAT, b'{"model": "tiny", "messages": ' + b"[" * 2_000 + b"]" * 2_000 + b"}", 400, None),
        (CHAT, {"model": MODEL}, 400, "messages"),
        (CHAT, {"model": MODEL, "messages": "hi"}, 400, "messages"),
        (CHAT, {"model": MODEL, "messages": []}, 400, "messages"),
        (CHAT, {"model": MODEL, "messages": [user("hi"), 3]}, 400, "messages[1]"),
        (CHAT, {"model": 7, "messages": MESSAGES}, 400, "model"),
        (CHAT, {"model": "m" * 300, "messages": MESSAGES}, 400, "model"),
        (CHAT, {"model": "nobody", "messages": MESSAGES}, 404, "model"),
        (CHAT, {"model": MODEL, "messages": MESSAGES, "stream": "yes"}, 400, "stream"),
        (CHAT, {"model": MODEL, "messages": MESSAGES, "conversation_id": 5}, 400, "conversation_id"),
        (CHAT, {"model": MODEL, "messages": MESSAGES, "conversation_id": "x" * 513}, 400, "conversation_id"),
        (CHAT, {"model": MODEL, "messages": MESSAGES, "conversation_id": {"a": 1}}, 400, "conversation_id"),
        (COMPLETIONS, {"model": MODEL}, 400, "prompt"),
        (COMPLETIONS, {"model": MODEL, "prompt": ""}, 400, "prompt"),
        (COMPLETIONS, {"model": MODEL, "prompt": []}, 400, "prompt"),
        (COMPLETIONS, {"model": MODEL, "prompt": {"a": 1}}, 400, "prompt"),
        (COMPLETIONS, {"model": MODEL, "prompt": [1, -2]}, 400, "prompt"),
        (COMPLETIONS, {"model": MODEL, "prompt": [1, "a"]}, 400, "prompt"),
        (COMPLETIONS, {"model": MODEL, "prompt": [1.5]}, 400, "prompt"),
        (COMPLETIONS, {"model": MODEL, "prompt": [True]}, 400, "prompt"),
        (COMPLETIONS, {"model": MODEL, "prompt": [2**64]}, 400, "prompt"),
        (COMPLETIONS, {"model": MODEL, "prompt": ["a", [1]]}, 400, "prompt"),
    ],
)
async def test_bad_input_is_refused_in_the_apis_shape(
    scene: Scene, path: str, body: Any, status: int, param: str | None
) -> None:
    async with scene.post(path, body) as response:
        assert response.status == status, await response.read()
        error = (await response.json())["error"]
    assert error["param"] == param
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert scene.prefill.received == scene.decode.received == []


async def test_huge_session_header_is_refused(scene: Scene) -> None:
    async with scene.post(CHAT, {"model": MODEL, "messages": MESSAGES}, X_Session_ID="x" * 513) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "X-Session-ID"


async def test_empty_client_key_means_none(scene: Scene) -> None:
    for _ in range(2):
        await scene.chat(MESSAGES, conversation_id="")
    sessions = {received.envelope.session_id for received in scene.prefill.received if received.envelope}
    assert len(sessions) == 2


async def test_model_may_be_left_out_when_there_is_only_one(scene: Scene) -> None:
    async with scene.post(CHAT, {"messages": MESSAGES}) as response:
        assert response.status == 200
    assert "model" not in scene.decode.received[0].body


async def test_token_prompt_of_odd_size_is_served(scene: Scene) -> None:
    async with scene.post(COMPLETIONS, {"model": MODEL, "prompt": [2**63, 0, 1]}) as response:
        assert response.status == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    [*sorted(STRIPPED), "model", "messages", "prompt", "stream", "n", "max_tokens", "echo", "logprobs", "vllm_xargs"]
)


def parsed_or_refused(endpoint: Endpoint, body: bytes) -> TurnRequest | ApiError:
    try:
        return parse_request(endpoint, body, {"X-Session-ID": ""})
    except ApiError as error:
        return error


@given(body=st.dictionaries(NAMES | st.text(max_size=6), JSON, max_size=8), endpoint=st.sampled_from(list(Endpoint)))
def test_any_object_is_parsed_or_refused_and_never_leaks_a_stripped_field(
    body: dict[str, Any], endpoint: Endpoint
) -> None:
    request = parsed_or_refused(endpoint, json.dumps(body).encode())
    if isinstance(request, ApiError):
        assert request.status == 400
        return
    for leg in (prefill_body(request, "salt", "envelope", None), decode_body(request, "salt", "envelope", "offer")):
        sent = json.loads(leg)
        assert sent["cache_salt"] == "salt"
        assert not (STRIPPED - {"cache_salt", "kv_transfer_params"}) & sent.keys()
        xargs = sent.get("vllm_xargs")
        assert not isinstance(xargs, dict) or not STRIPPED & xargs.keys()
    kept = body.keys() - STRIPPED - {"vllm_xargs", "extra_body", "extra_args"}
    assert {name: sent[name] for name in kept} == {name: body[name] for name in kept}


@given(body=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    for endpoint in Endpoint:
        request = parsed_or_refused(endpoint, body)
        assert not isinstance(request, ApiError) or request.status == 400


@given(key=st.text(max_size=600))
def test_client_key_is_taken_whole_or_refused(key: str) -> None:
    try:
        body = orjson.dumps({"messages": MESSAGES, "conversation_id": key})
    except TypeError:  # a lone surrogate has no JSON
        return
    request = parsed_or_refused(Endpoint.CHAT, body)
    if isinstance(request, ApiError):
        assert request.param == "conversation_id"
        assert len(key) > MAX_CLIENT_KEY_CHARS
    else:
        assert request.client_key == key


@given(value=JSON)
def test_values_that_go_on_are_the_clients_own_bytes(value: Any) -> None:
    raw = json.dumps(value, indent=1)
    body = f'{{"messages": [{{"role": "user"}}], "odd" : {raw} , "big": 1234567890123456789012345678901234567890}}'
    request = parse_request(Endpoint.CHAT, body.encode(), {})
    for leg in (decode_body(request, "s", None, None), prefill_body(request, "s", "e", None)):
        assert raw.encode() in leg
        assert b"1234567890123456789012345678901234567890" in leg
