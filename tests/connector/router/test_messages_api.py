"""Anthropic's messages: two legs, reuse in spite of what moves with each turn, errors in Anthropic's shape."""

import json
from typing import Any

import pytest
from aiohttp import web

from connector.router.decode import MAX_ERROR_BYTES
from connector.router.replies import digest_in_prompt, digest_of_reply
from connector.router.requests import Endpoint
from tests.connector.router.conftest import API_KEY, Scene, user
from tests.connector.router.fake_engine import MODEL, Received, error_response
from tests.connector.router.formats import compact, message, messages_stream, named_event
from tests.connector.router.waiting import eventually

PATH = "/v1/messages"


async def send(scene: Scene, messages: list[dict[str, Any]], **fields: Any) -> bytes:
    body = {"model": MODEL, "max_tokens": 8, "messages": messages, **fields}
    async with scene.post(PATH, body) as reply:
        text: bytes = await reply.read()
        assert reply.status == 200, text
        return text


def spoken(role: str, text: str, **members: Any) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text, **members}]}


async def test_prefill_computes_one_token_and_decode_gets_the_clients_own(scene: Scene) -> None:
    """Field report 27, for this API."""
    fields = {
        "stream": True,
        "stop_sequences": ["x"],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "u"},
        "cache_salt": "mine",
        "kv_transfer_params": {"do_remote_decode": True},
        "vllm_xargs": {"kv_transfer_params": "x", "kept": 1},
    }
    text = await send(scene, [user("hi")], **fields, max_tokens=2048)
    prefill, decode = scene.prefill.received[0].body, scene.decode.received[0].body
    assert (prefill["max_tokens"], prefill["stream"]) == (1, False)
    assert (decode["max_tokens"], decode["stream"]) == (2048, True)
    for leg in (prefill, decode):
        assert leg["vllm_xargs"] == {"kept": 1}
        assert leg["cache_salt"] != "mine"
        assert leg["kv_transfer_params"]["backhaul"]["envelope"]
        assert {leg["thinking"]["type"], leg["stop_sequences"][0]} == {"enabled", "x"}
    assert text == b"".join(messages_stream(scene.decode.words, 7))
    await eventually(lambda: scene.control.turns, "the turn is recorded")
    assert scene.control.turns[0].num_prompt_tokens == 7


async def test_conversation_is_recognised_though_marks_move_and_the_first_line_changes(scene: Scene) -> None:
    """Field report 57: Claude Code's attribution line differs in every request, and vLLM drops it; ``cache_control``
    moves to the newest message, and turns texts into blocks."""
    mark = {"cache_control": {"type": "ephemeral"}}
    history: list[dict[str, Any]] = []
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    for number in range(3):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"},
            {"type": "text", "text": "You are terse.", **(mark if number else {})},
        ]
        newest = spoken("user", f"question {number}", **mark)
        await send(scene, [*history, newest], system=system, tools=[{**tools[0], **(mark if number == 1 else {})}])
        await scene.until_leased(number + 1)
        history += [user(f"question {number}"), spoken("assistant", "Hello you")]
    turns = [leg.envelope for leg in scene.prefill.received if leg.envelope]
    assert len({turn.session_id for turn in turns}) == 1
    assert [leg.offer for leg in scene.prefill.received[1:]] == [f"d-offer-{turn.turn_id}" for turn in turns[:-1]]


async def test_marks_within_a_tools_result_do_not_count(scene: Scene) -> None:
    def result(**members: Any) -> dict[str, Any]:
        inner = [{"type": "text", "text": "42", **members}]
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": inner}]}

    await send(scene, [user("hi"), result(cache_control={"type": "ephemeral"})])
    await scene.until_leased(1)
    await send(scene, [user("hi"), result(), spoken("assistant", "Hello you"), user("more")])
    assert scene.prefill.received[1].offer is not None


async def test_other_system_or_tools_share_nothing(scene: Scene) -> None:
    await send(scene, [user("hi")], system="Be terse.")
    await scene.until_leased(1)
    await send(scene, [user("hi")], system="Be verbose.")
    await send(scene, [user("hi")], system="Be terse.", tools=[{"name": "f", "input_schema": {}}])
    assert [leg.offer for leg in scene.prefill.received] == [None, None, None]


@pytest.mark.parametrize("headers", [{"x-api-key": API_KEY}, {"Authorization": f"Bearer {API_KEY}"}])
async def test_either_header_of_anthropics_clients_is_a_key(scene: Scene, headers: dict[str, str]) -> None:
    body = {"model": MODEL, "max_tokens": 8, "messages": [user("hi")]}
    async with scene.client.post(scene.url + PATH, json=body, headers=headers) as reply:
        assert reply.status == 200
    assert "x-api-key" not in scene.decode.received[0].headers


async def test_bad_bearer_is_not_saved_by_a_good_key_beside_it(scene: Scene) -> None:
    headers = {"x-api-key": API_KEY, "Authorization": "Bearer wrong"}
    async with scene.client.post(scene.url + PATH, json={}, headers=headers) as reply:
        assert reply.status == 401


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"{", 400, "invalid_request_error"),
        ({"model": MODEL, "messages": [user("hi")]}, 400, "invalid_request_error"),
        ({"model": MODEL, "messages": [user("hi")], "max_tokens": 0}, 400, "invalid_request_error"),
        ({"model": MODEL, "messages": [user("hi")], "max_tokens": True}, 400, "invalid_request_error"),
        ({"model": MODEL, "messages": [], "max_tokens": 8}, 400, "invalid_request_error"),
        ({"model": MODEL, "messages": [7], "max_tokens": 8}, 400, "invalid_request_error"),
        ({"model": "nobody", "messages": [user("hi")], "max_tokens": 8}, 404, "not_found_error"),
        (b" " * 300_000, 413, "request_too_large"),
    ],
)
async def test_routers_own_errors_have_anthropics_shape(scene: Scene, body: Any, status: int, kind: str) -> None:
    async with scene.post(PATH, body) as reply:
        assert reply.status == status
        value = await reply.json()
    assert (value["type"], value["error"]["type"]) == ("error", kind)
    assert value["error"]["message"]
    for path in (PATH, PATH + "/count_tokens") if status != 413 else ():
        async with scene.post(path, body, "wrong") as reply:
            assert reply.status == 401
            assert (await reply.json())["error"]["type"] == "authentication_error"


ENGINES_ERRORS = [
    ({"error": {"message": "bad", "type": "Bad Request", "param": "x", "code": 400}}, "bad"),
    ({"error": "Unauthorized"}, "Unauthorized"),
    ({"type": "error", "error": {"type": "BadRequestError", "message": "bad"}}, "bad"),
]


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize(("body", "text"), ENGINES_ERRORS)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_engines_errors_get_anthropics_shape(
    scene: Scene, leg: str, body: dict[str, Any], text: str, is_stream: bool
) -> None:
    async def refuse(_: web.BaseRequest, __: Received) -> web.Response:
        return web.json_response(body, status=422, headers={"Retry-After": "7"})

    getattr(scene, leg).script = refuse
    fields = {"model": MODEL, "max_tokens": 8, "messages": [user("hi")], "stream": is_stream}
    async with scene.post(PATH, fields) as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (422, "7")
        value = await reply.json()
    assert value == {"type": "error", "error": {"type": "invalid_request_error", "message": text}}


@pytest.mark.parametrize(
    "body", [b"plain text", b'{"type": "error", "error": {"type": "api_error", "message": "m"}}', b"\xff"]
)
async def test_errors_in_their_own_shape_stay_as_they_came(scene: Scene, body: bytes) -> None:
    async def refuse(_: web.BaseRequest, __: Received) -> web.Response:
        return web.Response(body=body, status=400, content_type="application/json")

    scene.decode.script = refuse
    async with scene.post(PATH, {"model": MODEL, "max_tokens": 8, "messages": [user("hi")]}) as reply:
        assert reply.status == 400
        assert await reply.read() == body


@pytest.mark.parametrize(("num_sent", "is_whole"), [(10, False), (2 * MAX_ERROR_BYTES, True)])
async def test_error_of_decodes_that_cannot_be_read_is_a_502(scene: Scene, num_sent: int, is_whole: bool) -> None:
    """It breaks off, or is longer than an error is."""

    async def break_off(request: web.BaseRequest, _: Received) -> web.StreamResponse:
        response = web.StreamResponse(status=400)
        response.content_length = num_sent if is_whole else num_sent + 1
        await response.prepare(request)
        await response.write(b"x" * num_sent)
        assert request.transport is not None
        if not is_whole:
            request.transport.close()
        return response

    scene.decode.script = break_off
    for is_stream in (False, True):
        body = {"model": MODEL, "max_tokens": 8, "messages": [user("hi")], "stream": is_stream}
        async with scene.post(PATH, body) as reply:
            assert reply.status == 502
            assert (await reply.json())["error"]["type"] == "api_error"
    assert scene.live.turns.num_active == 0


async def test_counting_tokens_makes_no_turn_and_keeps_the_engines_error_readable(scene: Scene) -> None:
    async def refuse(_: web.BaseRequest, __: Received) -> web.Response:
        return error_response(400, "no such thing")

    async with scene.post(PATH + "/count_tokens", {"model": MODEL, "messages": [user("hi")]}) as reply:
        assert await reply.json() == {"input_tokens": 7}
    scene.prefill.script = scene.decode.script = refuse
    async with scene.post(PATH + "/count_tokens", {"model": MODEL, "messages": [user("hi")]}) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"] == {"type": "invalid_request_error", "message": "no such thing"}
    assert len(scene.live.index) == 0
    assert scene.control.turns == []


BLOCKS: list[list[dict[str, Any]]] = [
    [{"type": "text", "text": "Hello you"}],
    [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Hello"}],
    [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"b": 1, "a": [2]}}],
    [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
]


def streamed(blocks: list[dict[str, Any]]) -> bytes:
    events = []
    for index, block in enumerate(blocks):
        empty = {"text": "", "thinking": "", "input": {}}
        opening = {name: empty.get(name, value) for name, value in block.items()}
        events.append(("content_block_start", {"content_block": opening}))
        if block["type"] == "tool_use":
            given = json.dumps(block["input"]) if block["input"] else ""
            parts = [{"type": "input_json_delta", "partial_json": piece} for piece in (given[:3], given[3:])]
        else:
            name = block["type"]
            parts = [{"type": f"{name}_delta", name: piece} for piece in (block[name][:1], block[name][1:])]
        events += [("content_block_delta", {"delta": part, "index": index}) for part in parts]
        events[-3] = (events[-3][0], {**events[-3][1], "index": index})
    return b"".join(named_event(name, {"type": name, **value}) for name, value in events)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_digest_of_a_reply_is_that_of_what_comes_back(blocks: list[dict[str, Any]]) -> None:
    prompt = [user("hi"), {"role": "assistant", "content": blocks}]
    found = {
        digest_in_prompt(Endpoint.MESSAGES, prompt, 1),
        digest_of_reply(Endpoint.MESSAGES, compact(message(blocks, 7, 2, "end_turn")).encode(), is_stream=False),
        digest_of_reply(Endpoint.MESSAGES, streamed(blocks), is_stream=True),
    }
    assert len(found) == 1
    assert found != {b""}
    assert digest_in_prompt(Endpoint.MESSAGES, prompt, 0) == b""
