"""Official clients and an agent framework, unchanged, against the router: formats, errors, usage, reuse."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.connector.router.conftest import API_KEY, Scene
from tests.connector.router.fake_engine import MODEL, Received
from tests.connector.router.formats import MESSAGES, RESPONSES, message, output_call, response


@pytest.fixture
async def of_openai(scene: Scene) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{scene.url}/v1", api_key=API_KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def of_anthropic(scene: Scene) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=scene.url, api_key=API_KEY, max_retries=0) as client:
        yield client


def offers(scene: Scene) -> list[str | None]:
    return [received.offer for received in scene.prefill.received]


def sessions(scene: Scene) -> set[str]:
    return {received.envelope.session_id for received in scene.prefill.received if received.envelope}


async def test_openais_client_reads_responses_and_goes_on(scene: Scene, of_openai: openai.AsyncOpenAI) -> None:
    first = await of_openai.responses.create(model=MODEL, input="hi", instructions="Be terse.")
    assert (first.output_text, first.status) == ("Hello you", "completed")
    assert first.usage is not None
    assert (first.usage.input_tokens, first.usage.output_tokens) == (7, 2)
    await scene.until_leased(1)
    items: list[Any] = [{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "more"}]
    stream = await of_openai.responses.create(model=MODEL, input=items, instructions="Be terse.", stream=True)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == "Hello you"
    assert offers(scene)[1] is not None
    assert len(sessions(scene)) == 1
    again = await of_openai.responses.create(model=MODEL, input="and?", previous_response_id=last.response.id)
    assert again.id != last.response.id
    assert len(scene.prefill.received) == 2


async def test_openais_client_raises_its_own_errors_for_responses(of_openai: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as background:
        await of_openai.responses.create(model=MODEL, input="hi", background=True)
    assert background.value.param == "background"
    with pytest.raises(openai.BadRequestError) as lost:
        await of_openai.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")
    assert (lost.value.param, lost.value.code) == ("previous_response_id", "previous_response_not_found")
    with pytest.raises(openai.InternalServerError) as stored:
        await of_openai.responses.retrieve("resp_1")
    assert stored.value.status_code == 501


async def test_anthropics_client_reads_messages_and_reuses(
    scene: Scene, of_anthropic: anthropic.AsyncAnthropic
) -> None:
    asked: list[Any] = [{"role": "user", "content": "hi"}]
    first = await of_anthropic.messages.create(model=MODEL, max_tokens=8, messages=asked, system="Be terse.")
    assert (first.content[0].type, first.stop_reason) == ("text", "end_turn")
    assert (first.usage.input_tokens, first.usage.output_tokens) == (7, 2)
    await scene.until_leased(1)
    asked += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "more"}]
    async with of_anthropic.messages.stream(model=MODEL, max_tokens=8, messages=asked, system="Be terse.") as stream:
        text = [piece async for piece in stream.text_stream]
        final = await stream.get_final_message()
    assert text == scene.decode.words
    assert (final.stop_reason, final.usage.input_tokens, final.usage.output_tokens) == ("end_turn", 7, 2)
    assert offers(scene)[1] is not None
    assert len(sessions(scene)) == 1
    counted = await of_anthropic.messages.count_tokens(model=MODEL, messages=asked)
    assert counted.input_tokens == 7


async def test_anthropics_client_raises_its_own_errors(scene: Scene, of_anthropic: anthropic.AsyncAnthropic) -> None:
    asked: list[Any] = [{"role": "user", "content": "hi"}]
    with pytest.raises(anthropic.BadRequestError) as empty:
        await of_anthropic.messages.create(model=MODEL, max_tokens=8, messages=[])
    assert isinstance(empty.value.body, dict)
    assert empty.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        await of_anthropic.messages.create(model="nobody", max_tokens=8, messages=asked)
    scene.draining.add("d0")
    await scene.publish()
    with pytest.raises(anthropic.InternalServerError) as away:
        await of_anthropic.messages.create(model=MODEL, max_tokens=8, messages=asked)
    assert away.value.status_code == 503
    async with anthropic.AsyncAnthropic(base_url=scene.url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(anthropic.AuthenticationError):
            await stranger.messages.create(model=MODEL, max_tokens=8, messages=asked)


async def test_bearer_token_of_anthropics_client_counts_too(scene: Scene) -> None:
    async with anthropic.AsyncAnthropic(base_url=scene.url, auth_token=API_KEY, max_retries=0) as client:
        asked: list[Any] = [{"role": "user", "content": "hi"}]
        assert (await client.messages.create(model=MODEL, max_tokens=8, messages=asked)).id


def models_of(of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic) -> dict[str, Model[Any]]:
    provider = OpenAIProvider(openai_client=of_openai)
    return {
        "/v1/chat/completions": OpenAIChatModel(MODEL, provider=provider),
        RESPONSES: OpenAIResponsesModel(MODEL, provider=provider),
        MESSAGES: AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=of_anthropic)),
    }


TOOL_RESULTS = (b'"tool_call_id"', b'"function_call_output"', b'"tool_result"')


async def calls_the_tool_first(_: web.BaseRequest, received: Received) -> web.Response | None:
    """The engine's first reply asks for the sum; what follows the tool's result is its usual one."""
    if any(mark in received.raw for mark in TOOL_RESULTS):
        return None
    if received.path == RESPONSES:
        call = {**output_call("add", '{"a": 10, "b": 21}'), "status": "completed"}
        return web.json_response(response(received.body["request_id"], [call], 7, 2, "completed"))
    if received.path == MESSAGES:
        block = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 10, "b": 21}}
        return web.json_response(message([block], 7, 2, "tool_use"))
    function = {"name": "add", "arguments": '{"a": 10, "b": 21}'}
    said = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    choice = {"index": 0, "message": said, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": MODEL}
    return web.json_response({**head, "choices": [choice], "usage": usage})


@pytest.mark.parametrize("path", ["/v1/chat/completions", RESPONSES, MESSAGES])
async def test_agent_with_a_tool_extends_one_conversation(
    scene: Scene, of_openai: openai.AsyncOpenAI, of_anthropic: anthropic.AsyncAnthropic, path: str
) -> None:
    agent = Agent(models_of(of_openai, of_anthropic)[path], system_prompt="You add numbers.")

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        return a + b

    scene.decode.script = calls_the_tool_first
    first = await agent.run("What is 10 and 21?")
    second = await agent.run("And again?", message_history=first.all_messages())
    assert (first.output, second.output) == ("Hello you", "Hello you")
    assert [received.path for received in scene.decode.received] == [path] * 3
    assert len(scene.prefill.received) == 3
    assert len(sessions(scene)) == 1
    assert first.usage.requests == 2
    assert first.usage.input_tokens == 14
