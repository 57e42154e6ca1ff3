"""Official clients and an agent framework through the real pair: formats, usage, ends, and the answers of one engine.

The model's weights are random, so texts are noise: what is compared is that two engines say what one says, and that the
next turn of a plain client reuses.
"""

import secrets
import uuid
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from tests.e2e.routed import REUSING
from tests.e2e.stack import Stack
from tests.e2e.test_conversations import SYSTEM, turns_of

NUM_OUTPUT_TOKENS = 8


@pytest.fixture
async def of_openai(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    url, key = f"{stack.router_url}/v1", stack.secret("api-key")
    async with openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
async def of_anthropic(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    key = stack.secret("api-key")
    async with anthropic.AsyncAnthropic(base_url=stack.router_url, api_key=key, max_retries=0, timeout=120) as client:
        yield client


def new_system() -> str:
    """Long enough to pull, and nobody else's."""
    return SYSTEM + uuid.uuid4().hex


async def alone(stack: Stack, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One engine's answer, in a cache namespace of its own."""
    async with stack.engine(stack.decode_url) as engine:
        response = await engine.post(path, json={"model": "tiny", **body, "cache_salt": secrets.token_hex(16)})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def assert_second_turn_reused(stack: Stack) -> None:
    first, second = await turns_of(stack, 2)
    assert second["prefill_decision"] in REUSING, (first, second)
    assert second["reused_tokens"] >= first["prompt_tokens"] // 2
    assert second["decode_decision"] in REUSING


@pytest.mark.parametrize("is_stream", [False, True])
async def test_openais_client_of_responses(stack: Stack, of_openai: openai.AsyncOpenAI, is_stream: bool) -> None:
    system, items = new_system(), list[Any]([{"role": "user", "content": "Which berths are free?"}])
    common: dict[str, Any] = {"instructions": system, "max_output_tokens": NUM_OUTPUT_TOKENS, "temperature": 0}
    for number in range(2):
        wanted = await alone(stack, "/v1/responses", {**common, "input": plain(items)})
        if is_stream:
            stream = await of_openai.responses.create(model="tiny", input=items, stream=True, **common)
            events = [event async for event in stream]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            assert events[-1].type == "response.completed"
            got = events[-1].response
        else:
            got = await of_openai.responses.create(model="tiny", input=items, **common)
        assert got.output_text == wanted["output"][0]["content"][0]["text"]
        assert got.status == wanted["status"]
        assert got.usage is not None
        assert got.usage.input_tokens == wanted["usage"]["input_tokens"]
        assert got.usage.output_tokens == wanted["usage"]["output_tokens"]
        items += [*got.output, {"role": "user", "content": f"And then, {number}?"}]
    await assert_second_turn_reused(stack)


def plain(items: list[Any]) -> list[Any]:
    """As the client would send them."""
    return [item if isinstance(item, dict) else item.model_dump(exclude_none=True) for item in items]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_anthropics_client_of_messages(
    stack: Stack, of_anthropic: anthropic.AsyncAnthropic, is_stream: bool
) -> None:
    system, messages = new_system(), list[Any]([{"role": "user", "content": "Which berths are free?"}])
    greedy = {"temperature": 0}
    for number in range(2):
        common: dict[str, Any] = {"system": system, "max_tokens": NUM_OUTPUT_TOKENS}
        wanted = await alone(stack, "/v1/messages", {**common, **greedy, "messages": messages})
        counted = await of_anthropic.messages.count_tokens(model="tiny", system=system, messages=messages)
        if is_stream:
            async with of_anthropic.messages.stream(
                model="tiny", messages=messages, extra_body=greedy, **common
            ) as stream:
                got = await stream.get_final_message()
        else:
            got = await of_anthropic.messages.create(model="tiny", messages=messages, extra_body=greedy, **common)
        text = got.content[0]
        assert text.type == "text"
        assert text.text == wanted["content"][0]["text"]
        assert got.stop_reason == wanted["stop_reason"]
        assert got.usage.output_tokens == wanted["usage"]["output_tokens"]
        assert got.usage.input_tokens + (got.usage.cache_read_input_tokens or 0) == counted.input_tokens
        marked = {"type": "text", "text": f"And then, {number}?", "cache_control": {"type": "ephemeral"}}
        messages += [{"role": "assistant", "content": text.text}, {"role": "user", "content": [marked]}]
    await assert_second_turn_reused(stack)


async def test_usage_comes_last_and_alone_in_a_stream(of_openai: openai.AsyncOpenAI) -> None:
    """Field report 35 (vllm-project/vllm-ascend#10598)."""
    stream = await of_openai.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        max_completion_tokens=NUM_OUTPUT_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens
    assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])


ENDS: list[dict[str, Any]] = [
    {"stop": ["first"]},
    {"stop": ["first letter"]},
    {"stop_token_ids": ["first"]},
    {"logit_bias": {"eos": 100}},
    {"logprobs": True, "top_logprobs": 5},
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: "-".join(map(str, end.items())))
async def test_prefills_token_that_ends_the_text_ends_it_alike(
    stack: Stack, of_openai: openai.AsyncOpenAI, end: dict[str, Any]
) -> None:
    """Field reports 29 (vllm-project/vllm-ascend#13870) and 31 (vllm-project/vllm#27449)."""
    messages: list[Any] = [{"role": "system", "content": new_system()}, {"role": "user", "content": "hi"}]
    common: dict[str, Any] = {"messages": messages, "max_completion_tokens": NUM_OUTPUT_TOKENS, "temperature": 0}
    probe = (await alone(stack, "/v1/chat/completions", {**common, "return_token_ids": True}))["choices"][0]
    text, ids = probe["message"]["content"], probe["token_ids"]
    tokens = await alone(stack, "/detokenize", {"tokens": ids[:1]})
    words = {"first": tokens["prompt"] or text, "first letter": text[:1]}
    fields: dict[str, Any] = dict(end)
    if "stop" in end:
        fields["stop"] = [words[end["stop"][0]]]
    elif "stop_token_ids" in end:
        fields["stop_token_ids"] = ids[:1]
    elif "logit_bias" in end:
        fields["logit_bias"] = {str(await eos_of(stack)): 100}
    wanted = (await alone(stack, "/v1/chat/completions", {**common, **fields}))["choices"][0]
    got = await of_openai.post("/chat/completions", cast_to=object, body={"model": "tiny", **common, **fields})
    assert isinstance(got, dict)
    mine = got["choices"][0]
    assert mine["message"]["content"] == wanted["message"]["content"]
    assert mine["finish_reason"] == wanted["finish_reason"]
    assert mine["stop_reason"] == wanted["stop_reason"]
    if "logprobs" in end:
        assert [one["token"] for one in mine["logprobs"]["content"]] == [
            one["token"] for one in wanted["logprobs"]["content"]
        ]


async def eos_of(stack: Stack) -> int:
    tokens = (await alone(stack, "/tokenize", {"prompt": "<|im_end|>", "add_special_tokens": False}))["tokens"]
    assert len(tokens) == 1
    return int(tokens[0])


async def test_errors_have_the_shape_of_their_api(
    of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic
) -> None:
    with pytest.raises(openai.BadRequestError) as background:
        await of_openai.responses.create(model="tiny", input="hi", background=True)
    assert background.value.param == "background"
    messages: list[Any] = [{"role": "user", "content": [{"type": "unheard-of"}]}]
    with pytest.raises(anthropic.BadRequestError) as engines:
        await of_anthropic.messages.create(model="tiny", max_tokens=8, messages=messages)
    assert isinstance(engines.value.body, dict)
    assert engines.value.body["type"] == "error"
    assert engines.value.body["error"]["type"] == "invalid_request_error"


STRUCTURED: list[tuple[str, str, dict[str, Any]]] = [
    ("/chat/completions", "max_completion_tokens", {"response_format": {"type": "json_object"}}),
    ("/responses", "max_output_tokens", {"text": {"format": {"type": "json_object"}}}),
    ("/messages", "max_tokens", {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}),
]


@pytest.mark.parametrize(("path", "limit", "fields"), STRUCTURED)
async def test_structured_output_is_that_of_one_engine(
    stack: Stack, path: str, limit: str, fields: dict[str, Any]
) -> None:
    """The grammar begins at decode's first token, whatever prefill's one token was."""
    messages = [{"role": "user", "content": f"Name a berth. {new_system()}"}]
    prompt = {"input": messages} if path == "/responses" else {"messages": messages}
    body = {**prompt, **fields, limit: NUM_OUTPUT_TOKENS, "temperature": 0}
    wanted = await alone(stack, f"/v1{path}", body)
    async with stack.client() as client:
        response = await client.post(path, json={"model": "tiny", **body})
    assert response.status_code == 200, response.text
    assert said(response.json()) == said(wanted)
    assert said(wanted).lstrip().startswith("{")


def said(reply: dict[str, Any]) -> str:
    if "choices" in reply:
        return str(reply["choices"][0]["message"]["content"])
    blocks = reply["output"][0]["content"] if "output" in reply else reply["content"]
    return str(blocks[0]["text"])


async def test_engine_without_a_store_says_so_of_an_earlier_response(of_openai: openai.AsyncOpenAI) -> None:
    """The router finds the engine; vLLM keeps responses only if it is told to."""
    first = await of_openai.responses.create(model="tiny", input="hi", max_output_tokens=4)
    with pytest.raises(openai.NotFoundError) as lost:
        await of_openai.responses.create(model="tiny", input="more", max_output_tokens=4, previous_response_id=first.id)
    assert first.id in lost.value.message


def models_of(of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic) -> list[Model[Any]]:
    provider = OpenAIProvider(openai_client=of_openai)
    return [
        OpenAIChatModel("tiny", provider=provider),
        OpenAIResponsesModel("tiny", provider=provider),
        AnthropicModel("tiny", provider=AnthropicProvider(anthropic_client=of_anthropic)),
    ]


@pytest.mark.parametrize("place", range(3), ids=["chat", "responses", "messages"])
async def test_agents_second_run_reuses_its_first(
    stack: Stack, of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic, place: int
) -> None:
    settings = ModelSettings(max_tokens=NUM_OUTPUT_TOKENS, temperature=0)
    agent = Agent(models_of(of_openai, of_anthropic)[place], system_prompt=new_system(), model_settings=settings)
    first = await agent.run("Which berths are free?")
    second = await agent.run("And then?", message_history=first.all_messages())
    assert second.usage.input_tokens > first.usage.input_tokens > 0
    await assert_second_turn_reused(stack)
