"""Replies of Anthropic's messages: content blocks. Thinking, which clients may leave out, counts for nothing."""

from collections.abc import Iterable, Mapping, Sequence

import orjson

from connector.router.replies.digest import Said
from connector.router.replies.events import data_events


def said_in_prompt(messages: Sequence[object], position: int) -> Said | None:
    message = messages[position]
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return None
    content = message.get("content")
    if isinstance(content, str):
        return Said(content)
    return _said(block for block in content if isinstance(block, dict)) if isinstance(content, list) else None


def said_in_body(body: bytes) -> Said:
    return _said(orjson.loads(body)["content"])


def said_in_events(body: bytes) -> Said:
    text: list[str] = []
    calls: dict[int, list[str]] = {}
    for event in data_events(body):
        value = orjson.loads(event)
        kind, index = value.get("type"), value.get("index") or 0
        if kind == "content_block_start" and value["content_block"].get("type") == "tool_use":
            calls[index] = [value["content_block"].get("name") or "", ""]
        elif kind == "content_block_delta":
            delta = value["delta"]
            text.append(delta.get("text") or "")
            if index in calls:
                calls[index][1] += delta.get("partial_json") or ""
    return Said("".join(text), [(name, _arguments(orjson.loads(given or "{}"))) for name, given in calls.values()])


def _said(blocks: Iterable[Mapping[str, object]]) -> Said:
    said = Said()
    for block in blocks:
        if block.get("type") == "text":
            said.text += str(block.get("text") or "")
        elif block.get("type") == "tool_use":
            said.calls.append((str(block.get("name") or ""), _arguments(block.get("input") or {})))
    return said


def _arguments(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
