"""Fields that break two legs elsewhere: right on both legs, or refused by name."""

import json
from typing import Any

import pytest
from aiohttp import web

from connector.router.requests import chat, completions, messages, responses
from tests.connector.router.conftest import MODEL, Scene, user
from tests.connector.router.fake_engine import Received, error_response
from tests.connector.router.waiting import eventually

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [user("hi")]},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": [user("hi")], "max_tokens": 8},
}


async def sent(scene: Scene, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What both legs of a request that must succeed were asked."""
    async with scene.post(path, {"model": MODEL, **LEAST[path], **body}) as response:
        assert response.status == 200, await response.read()
        await response.read()
    return scene.prefill.received[-1].body, scene.decode.received[-1].body


LIMITS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"stream": True, "stream_options": {"include_usage": True}, "max_completion_tokens": 500}),
    (CHAT, {"max_tokens": 400, "max_completion_tokens": 500}),
    (CHAT, {"max_tokens": None, "max_completion_tokens": None, "min_tokens": 5}),
    (CHAT, {}),
    (COMPLETIONS, {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 500, "min_tokens": 3}),
    (COMPLETIONS, {}),
    (RESPONSES, {"stream": True, "max_output_tokens": 500}),
    (RESPONSES, {}),
    (MESSAGES, {"stream": True, "max_tokens": 500}),
]


@pytest.mark.parametrize(("path", "body"), LIMITS)
async def test_prefill_is_one_token_whatever_the_limits(scene: Scene, path: str, body: dict[str, Any]) -> None:
    """Field report 27 (vllm-project/production-stack#971, vllm-project/router#2, llm-d/llm-d-router#403)."""
    prefill, decode = await sent(scene, path, body)
    limits = {name: value for name, value in prefill.items() if name.startswith("max_")}
    assert limits
    assert set(limits.values()) == {1}
    assert prefill["stream"] is False
    assert not {"stream_options", "min_tokens"} & prefill.keys()
    assert {name: decode[name] for name in body} == body


@pytest.mark.parametrize("path", LEAST)
async def test_what_prefill_refuses_the_client_sees(scene: Scene, path: str) -> None:
    """Field report 27: a 400 of P's, never swallowed."""

    async def refuse(_: web.BaseRequest, __: Received) -> web.Response:
        return error_response(400, "P says no")

    scene.prefill.script = refuse
    async with scene.post(path, {"model": MODEL, **LEAST[path]}) as response:
        assert response.status == 400
        assert (await response.json())["error"]["message"] == "P says no"
    assert scene.decode.received == []


@pytest.mark.parametrize("path", LEAST)
@pytest.mark.parametrize("params", [None, {}, {"backhaul": None}, "absent"])
async def test_prefills_token_that_ends_the_text_is_no_error(scene: Scene, path: str, params: Any) -> None:
    """Field report 29 (vllm-project/vllm-ascend#13870): no params come back, in whatever way they are missing."""

    async def ended(_: web.BaseRequest, __: Received) -> web.Response:
        reply = {"id": "p", "usage": {"prompt_tokens": 7}, "kv_transfer_params": params}
        return web.json_response({name: value for name, value in reply.items() if value != "absent"})

    scene.prefill.script = ended
    body = {"stop": ["x"], "logit_bias": {"2": 100}} if path != MESSAGES else {"stop_sequences": ["x"]}
    _, decode = await sent(scene, path, body)
    assert {name: decode[name] for name in body} == body
    assert decode["kv_transfer_params"]["backhaul"]["offer"] is None
    await eventually(lambda: scene.control.turns, "the turn is recorded")
    assert (scene.control.turns[0].status, scene.control.turns[0].http_status) == ("ok", 200)


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (CHAT, {"prompt_logprobs": 2}, "prompt_logprobs"),
        (CHAT, {"echo": True}, "echo"),
        (CHAT, {"n": 2}, "n"),
        (CHAT, {"use_beam_search": True}, "beam_search"),
        (COMPLETIONS, {"echo": True, "logprobs": 1}, "echo"),
        (COMPLETIONS, {"prompt_logprobs": 0}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt": ["a", "b", "c"]}, "prompt_list"),
        (COMPLETIONS, {"prompt": ["a"]}, "prompt_list"),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}, "prompt_list"),
        (COMPLETIONS, {"prompt": ["a", ""]}, "prompt_list"),
    ],
)
async def test_what_needs_the_prompts_logits_or_several_sequences_is_one_leg(
    scene: Scene, path: str, body: dict[str, Any], reason: str
) -> None:
    """Field reports 31 (vllm-project/vllm#27449) and 33 (vllm-project/vllm#50559): D alone, the request whole."""
    async with scene.post(path, {"model": MODEL, **LEAST[path], **body}) as response:
        assert response.status == 200
    assert scene.prefill.received == []
    decode = scene.decode.received[0]
    assert {name: decode.body[name] for name in body} == body
    assert decode.offer is None
    has_params = reason in ("prompt_logprobs", "echo")
    assert ("kv_transfer_params" in decode.body) is has_params
    assert scene.access_lines()[-1]["one_leg"] == reason


async def test_logprobs_of_the_reply_are_two_legs(scene: Scene) -> None:
    """Field report 31: decode makes them."""
    body = {"logprobs": True, "top_logprobs": 5, "stream": True}
    _, decode = await sent(scene, CHAT, body)
    assert {name: decode[name] for name in body} == body


async def test_usage_is_decodes_and_what_was_pulled_is_told_apart(scene: Scene) -> None:
    """Field report 35 (vllm-project/vllm-ascend#10598): bytes of usage as D sent them; P's pulls in the trace."""
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    details = {**usage, "prompt_tokens_details": {"cached_tokens": 6}}

    async def told(_: web.BaseRequest, __: Received) -> web.Response:
        return web.json_response({"choices": [], "usage": details})

    scene.decode.script = told
    async with scene.post(CHAT, {"model": MODEL, **LEAST[CHAT]}) as response:
        assert (await response.json())["usage"] == details
    await eventually(lambda: scene.control.turns, "the turn is recorded")
    assert (scene.control.turns[0].num_prompt_tokens, scene.control.turns[0].num_output_tokens) == (7, 2)


async def test_ranks_never_travel_between_the_legs(scene: Scene) -> None:
    """Field report 49 (ai-dynamo/dynamo#9936, sgl-project/sglang#29725): offers name their source; no header does."""
    headers = {"X_data_parallel_rank": "3", "X_Request_Id": "mine"}
    body = {"model": MODEL, **LEAST[CHAT], "data_parallel_rank": 3}
    async with scene.post(CHAT, body, **headers) as response:
        assert response.status == 200
    for leg in (scene.prefill.received[0], scene.decode.received[0]):
        assert "X-Data-Parallel-Rank" not in leg.headers
        assert "data_parallel_rank" not in leg.body
        assert leg.envelope is not None
        assert leg.headers["X-Request-Id"] == leg.envelope.turn_id


LEAST_CHAT = b'"model": "tiny", "messages": [{"role": "user"}]'
SMUGGLING = [
    b'"kv_transfer_params": 1, "kv_transfer_params": {"a": 1}',
    b'"kv_transfer\\u005fparams": {"a": 1}',
    b'"vllm_xargs": {"priority": 1}, "vllm_xargs": {"kv_transfer_params": 2, "cache\\u005fsalt": "x"}',
    b'"extra_body": {"a": [{"kv_transfer_params": 1}, [{"cache_salt": 2}]], "vllm_xargs": {"priority": 1}}',
    b'"extra_args": ' + b'{"a":' * 200 + b'{"request_id": 1}' + b"}" * 200,
]


def names_in(raw: bytes) -> list[str]:
    """Of members at every depth, duplicates included."""
    names: list[str] = []

    def see(pairs: list[tuple[str, Any]]) -> None:
        names.extend(name for name, _ in pairs)

    json.loads(raw, object_pairs_hook=see)
    return names


@pytest.mark.parametrize("body", SMUGGLING)
async def test_stripped_field_cannot_be_smuggled(scene: Scene, body: bytes) -> None:
    async with scene.post(CHAT, b"{%b, %b}" % (body, LEAST_CHAT)) as response:
        assert response.status == 200, await response.read()
    for leg in (scene.prefill.received[0], scene.decode.received[0]):
        names = names_in(leg.raw)
        assert names.count("kv_transfer_params") == names.count("cache_salt") == 1
        assert not {"priority", "request_id"} & set(names)


DEEP = b'{"a":' * 900 + b'{"request_id": 1}' + b"}" * 900


DEEP_BLOCKS = b'[{"cache_control": 1, "content":' * 400 + b"[]" + b"}]" * 400


@pytest.mark.parametrize("deep", [DEEP, DEEP_BLOCKS])
@pytest.mark.parametrize("path", LEAST)
@pytest.mark.parametrize("name", ["extra_args", "tools", "messages", "input", "system", "metadata"])
async def test_what_is_nested_too_deeply_to_read_is_a_400_or_left_alone(
    scene: Scene, path: str, name: str, deep: bytes
) -> None:
    value = b'[{"role": "user", "content": %b}]' % deep if name in ("messages", "input") else deep
    least = json.dumps({"model": MODEL, **{key: value for key, value in LEAST[path].items() if key != name}})
    async with scene.post(path, least.encode()[:-1] + b', "%b": %b}' % (name.encode(), value)) as response:
        assert response.status in (200, 400), await response.read()


KEPT: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]}),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}}),
    (CHAT, {"structured_outputs": {"regex": "a+"}, "reasoning_effort": "high", "include_reasoning": False}),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": False}, "stop": ["x"], "stop_token_ids": [2]}),
    (
        RESPONSES,
        {"text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}},
    ),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}]}),
    (MESSAGES, {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"}, "top_k": 3}),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": {}}}, "thinking": {"type": "adaptive"}}),
]


@pytest.mark.parametrize(("path", "body"), KEPT)
async def test_what_shapes_prompt_or_reply_reaches_both_legs_as_it_came(
    scene: Scene, path: str, body: dict[str, Any]
) -> None:
    for leg in await sent(scene, path, body):
        assert {name: leg[name] for name in body} == body


async def test_lora_name_is_a_model_like_any(scene: Scene) -> None:
    for engine in scene.engines:
        engine.models = [MODEL, "adapter"]
    scene.live.models.hurry()
    await eventually(lambda: "adapter" in scene.live.fleet.models_served(), "the adapter is known")
    for path in LEAST:
        prefill, decode = await sent(scene, path, {"model": "adapter"})
        assert prefill["model"] == decode["model"] == "adapter"


FOREIGN = [
    (path, name)
    for path, table in (
        (CHAT, chat.NOT_HERE),
        (COMPLETIONS, completions.NOT_HERE),
        (RESPONSES, responses.NOT_HERE),
        (MESSAGES, messages.NOT_HERE),
    )
    for name in table
]


@pytest.mark.parametrize(("path", "name"), FOREIGN)
async def test_field_that_the_engine_would_ignore_is_refused_by_name(scene: Scene, path: str, name: str) -> None:
    async with scene.post(path, {"model": MODEL, **LEAST[path], name: 2}) as response:
        assert response.status == 400
        assert f"'{name}'" in (await response.json())["error"]["message"]
    async with scene.post(path, {"model": MODEL, **LEAST[path], name: None}) as response:
        assert response.status == 200
    assert len(scene.decode.received) == 1
