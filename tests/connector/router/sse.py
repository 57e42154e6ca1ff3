"""Server-sent events as vLLM's chat and completion streams send them."""

import json
from typing import Any


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def chunk(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "tiny", "choices": [choice]})


def usage_chunk(num_prompt: int, num_output: int) -> bytes:
    usage = {"prompt_tokens": num_prompt, "completion_tokens": num_output, "total_tokens": num_prompt + num_output}
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": usage})


DONE = event(b"[DONE]")


def reply_stream(words: list[str], num_prompt: int = 7) -> list[bytes]:
    """Events of a whole reply: a role chunk, one per word, usage, the end."""
    return [chunk(""), *(chunk(word) for word in words), usage_chunk(num_prompt, len(words)), DONE]
