"""The legs that the router writes, read by vLLM's own request models, and vLLM's own events, read by the router.

Field reports 27 (vllm-project/production-stack#971) and 37 (smg-project/smg#1622): a leg that says one thing to us and
another to the engine.
"""

import json
from typing import Any

import pytest
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest, AnthropicStreamEvent
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages, wrap_data_with_event
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponseCompletedEvent, ResponsesRequest, ResponsesResponse

from connector.router.endings import Ending
from connector.router.legs import decode_body, prefill_body
from connector.router.requests import Endpoint, parse_request
from connector.router.requests.stripping import STRIPPED

HI = [{"role": "user", "content": "hi"}]
SMUGGLED = {
    "kv_transfer_params": {"remote_host": "10.0.0.1"},
    "cache_salt": "mine",
    "priority": -5,
    "request_id": "theirs",
    "vllm_xargs": {"kv_transfer_params": "x", "kept": 1},
}
BODIES: dict[Endpoint, list[dict[str, Any]]] = {
    Endpoint.CHAT: [
        {"messages": HI, "stream": True, "stream_options": {"include_usage": True}, "max_completion_tokens": 500},
        {"messages": HI, "max_tokens": 400, "max_completion_tokens": 500, "min_tokens": 30},
        {"messages": HI, "logprobs": True, "top_logprobs": 5, "stop": ["x"]},
        {"messages": HI, "response_format": {"type": "json_object"}},
        {"messages": HI},
    ],
    Endpoint.COMPLETIONS: [
        {"prompt": "hi", "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 500},
        {"prompt": [1, 2, 3], "min_tokens": 5, "max_tokens": 9, "logprobs": 2},
        {"prompt": "hi"},
    ],
    Endpoint.RESPONSES: [
        {"input": "hi", "stream": True, "max_output_tokens": 500, "store": True, "instructions": "Be terse."},
        {"input": HI, "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": False}]},
        {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    ],
    Endpoint.MESSAGES: [
        {"messages": HI, "max_tokens": 2048, "stream": True, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"messages": HI, "max_tokens": 5, "stop_sequences": ["x"], "system": [{"type": "text", "text": "Be terse."}]},
        {"messages": HI, "max_tokens": 5, "tools": [{"name": "f", "input_schema": {}}], "metadata": {"user_id": "u"}},
    ],
}
CASES = [(endpoint, body) for endpoint, bodies in BODIES.items() for body in bodies]


def as_vllm_reads(endpoint: Endpoint, body: bytes) -> tuple[Any, Any]:
    """The request, of messages the chat request that vLLM makes of it, and its sampling parameters."""
    if endpoint is Endpoint.RESPONSES:
        response = ResponsesRequest.model_validate_json(body)
        return response, response.to_sampling_params(1000, {})
    if endpoint is Endpoint.COMPLETIONS:
        completion = CompletionRequest.model_validate_json(body)
        return completion, completion.to_sampling_params(completion.max_tokens or 1000, {})
    if endpoint is Endpoint.MESSAGES:
        messages = AnthropicMessagesRequest.model_validate_json(body)
        chat = AnthropicServingMessages.to_chat_completion_request(messages)
    else:
        chat = ChatCompletionRequest.model_validate_json(body)
    return chat, chat.to_sampling_params(chat.max_completion_tokens or 1000, {})


@pytest.mark.parametrize(("endpoint", "body"), CASES)
def test_prefill_leg_is_one_token_and_carries_our_params_only(endpoint: Endpoint, body: dict[str, Any]) -> None:
    asked = parse_request(endpoint, json.dumps({**body, **SMUGGLED, "model": "tiny"}).encode(), {})
    request, sampling = as_vllm_reads(endpoint, prefill_body(asked, "salt", "envelope", "offer"))
    assert (sampling.max_tokens, sampling.n, bool(request.stream)) == (1, 1, False)
    assert getattr(sampling, "min_tokens", 0) == 0
    assert getattr(request, "stream_options", None) is None
    assert request.cache_salt == "salt"
    params = sampling.extra_args["kv_transfer_params"]
    assert params["backhaul"] == {"envelope": "envelope", "offer": "offer"}
    assert (params["do_remote_decode"], params["do_remote_prefill"], params["remote_host"]) == (True, False, None)
    assert sampling.extra_args["kept"] == 1
    assert not (STRIPPED - {"kv_transfer_params"}) & sampling.extra_args.keys()
    assert getattr(request, "priority", 0) == 0
    assert getattr(request, "request_id", "") != "theirs"


@pytest.mark.parametrize(("endpoint", "body"), CASES)
def test_decode_leg_is_the_clients_own_request(endpoint: Endpoint, body: dict[str, Any]) -> None:
    asked = parse_request(endpoint, json.dumps({**body, **SMUGGLED, "model": "tiny"}).encode(), {})
    alone, wanted = as_vllm_reads(endpoint, json.dumps({**body, "model": "tiny"}).encode())
    request, sampling = as_vllm_reads(endpoint, decode_body(asked, "salt", "envelope", "offer", "resp_ours"))
    limits = ("max_tokens", "min_tokens", "n", "logprobs", "stop", "temperature", "top_p", "seed", "output_kind")
    assert [getattr(sampling, name) for name in limits] == [getattr(wanted, name) for name in limits]
    assert bool(request.stream) == bool(alone.stream)
    assert sampling.extra_args["kv_transfer_params"]["do_remote_prefill"] is True
    assert request.cache_salt == "salt"
    if endpoint is Endpoint.RESPONSES:
        assert request.request_id == "resp_ours"
        assert ResponsesResponse.from_request(
            request, sampling, model_name="tiny", created_time=1, output=[], status="completed"
        ).id == ("resp_ours")


def test_last_event_of_a_response_is_told_as_its_end() -> None:
    request = ResponsesRequest(input="hi", model="tiny")
    usage = {
        "input_tokens": 7,
        "input_tokens_details": {
            "cached_tokens": 4,
            "cache_write_tokens": 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": 2,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": 9,
    }
    response = ResponsesResponse.from_request(
        request,
        request.to_sampling_params(16, {}),
        model_name="tiny",
        created_time=1,
        output=[],
        status="incomplete",
        usage=usage,  # type: ignore[arg-type]
    )
    event = ResponseCompletedEvent(type="response.completed", sequence_number=3, response=response)
    data = event.model_dump_json(indent=None, by_alias=True)
    ending = Ending(Endpoint.RESPONSES, f"event: response.completed\ndata: {data}\n\n".encode(), is_events=True)
    assert (ending.is_complete, ending.num_prompt_tokens, ending.num_output_tokens) == (True, 7, 2)


def test_last_events_of_a_message_are_told_as_its_end() -> None:
    usage = {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 4}
    delta = AnthropicStreamEvent.model_validate(
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    )
    stop = AnthropicStreamEvent(type="message_stop")
    tail = wrap_data_with_event(delta.model_dump_json(exclude_unset=True), "message_delta")
    assert not Ending(Endpoint.MESSAGES, tail.encode(), is_events=True).is_complete
    tail += wrap_data_with_event(stop.model_dump_json(exclude_unset=True, exclude_none=True), "message_stop")
    ending = Ending(Endpoint.MESSAGES, tail.encode(), is_events=True)
    assert (ending.missing, ending.num_prompt_tokens, ending.num_output_tokens) == ("", 7, 2)
