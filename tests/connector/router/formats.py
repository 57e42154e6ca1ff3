"""Replies of vLLM 0.32's responses and messages APIs, as it serializes them."""

import json
from typing import Any

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def compact(value: Any) -> str:
    """As pydantic dumps: no blanks."""
    return json.dumps(value, separators=(",", ":"))


def named_event(name: str, value: Any) -> bytes:
    return f"event: {name}\ndata: {compact(value)}\n\n".encode()


def response(identity: str, output: list[Any], num_prompt: int, num_output: int, status: str) -> dict[str, Any]:
    usage = {
        "input_tokens": num_prompt,
        "input_tokens_details": {"cached_tokens": 0, "input_tokens_per_turn": [], "cached_tokens_per_turn": []},
        "output_tokens": num_output,
        "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
        "total_tokens": num_prompt + num_output,
    }
    return {
        "id": identity,
        "created_at": 1,
        "model": "tiny",
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "background": False,
        "max_output_tokens": 16,
        "service_tier": "auto",
        "status": status,
        "truncation": "disabled",
        "usage": usage if status != "in_progress" else None,
        "user": None,
        "kv_transfer_params": None,
    }


def output_message(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": None}
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def output_call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "fc_1", "call_id": "call_1", "type": "function_call", "name": name, "arguments": arguments}


def responses_stream(identity: str, words: list[str], num_prompt: int) -> list[bytes]:
    """Created, in progress, one item with a delta for each word, completed."""
    item = output_message("".join(words))
    opening = {**item, "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    steps: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": response(identity, [], 0, 0, "in_progress")}),
        ("response.in_progress", {"response": response(identity, [], 0, 0, "in_progress")}),
        ("response.output_item.added", {"item": opening, "output_index": 0}),
        ("response.content_part.added", {**place, "part": part}),
        *(("response.output_text.delta", {**place, "delta": word, "logprobs": []}) for word in words),
        ("response.output_text.done", {**place, "text": "".join(words), "logprobs": []}),
        ("response.content_part.done", {**place, "part": item["content"][0]}),
        ("response.output_item.done", {"item": item, "output_index": 0}),
        ("response.completed", {"response": response(identity, [item], num_prompt, len(words), "completed")}),
    ]
    return [
        named_event(name, {**value, "sequence_number": number, "type": name})
        for number, (name, value) in enumerate(steps)
    ]


def message(content: list[Any], num_prompt: int, num_output: int, reason: str | None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": "tiny",
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": num_prompt, "output_tokens": num_output},
    }


def messages_stream(words: list[str], num_prompt: int) -> list[bytes]:
    usage = {"input_tokens": num_prompt, "output_tokens": len(words)}
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    text = {"type": "text", "text": ""}
    deltas = [{"type": "text_delta", "text": word} for word in words]
    return [
        named_event("message_start", {"type": "message_start", "message": message([], num_prompt, 0, None)}),
        named_event("content_block_start", {"index": 0, "type": "content_block_start", "content_block": text}),
        *(
            named_event("content_block_delta", {"index": 0, "type": "content_block_delta", "delta": delta})
            for delta in deltas
        ),
        named_event("content_block_stop", {"index": 0, "type": "content_block_stop"}),
        named_event("message_delta", {"type": "message_delta", "delta": stop, "usage": usage}),
        named_event("message_stop", {"type": "message_stop"}),
    ]


def stream(path: str, body: dict[str, Any], words: list[str], num_prompt: int) -> list[bytes]:
    if path == RESPONSES:
        return responses_stream(body["request_id"], words, num_prompt)
    return messages_stream(words, num_prompt)


def whole(path: str, body: dict[str, Any], words: list[str], num_prompt: int) -> dict[str, Any]:
    text = "".join(words)
    if path == RESPONSES:
        status = "incomplete" if body.get("max_output_tokens") == 1 else "completed"
        identity = body.get("request_id") or "resp_of_prefill"
        return response(identity, [output_message(text)], num_prompt, len(words), status)
    return message([{"type": "text", "text": text}], num_prompt, len(words), "end_turn")
