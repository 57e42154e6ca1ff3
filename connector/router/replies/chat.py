"""Replies of chat completions."""

from collections.abc import Iterator, Mapping, Sequence

import orjson

from connector.router.replies.digest import Said, text_of
from connector.router.replies.events import data_events


def said_in_prompt(messages: Sequence[object], position: int) -> Said | None:
    message = messages[position]
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return None
    return _said(message)


def said_in_body(body: bytes) -> Said:
    return _said(orjson.loads(body)["choices"][0]["message"])


def said_in_events(body: bytes) -> Said:
    text: list[str] = []
    calls: dict[int, list[str]] = {}
    for event in data_events(body):
        if event == b"[DONE]":
            break
        for choice in orjson.loads(event).get("choices") or ():
            delta = choice.get("delta") or {}
            text.append(delta.get("content") or "")
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                name_and_arguments = calls.setdefault(call.get("index") or 0, ["", ""])
                name_and_arguments[0] += function.get("name") or ""
                name_and_arguments[1] += function.get("arguments") or ""
    return Said("".join(text), [(name, arguments) for _, (name, arguments) in sorted(calls.items())])


def _said(message: Mapping[str, object]) -> Said:
    return Said(text_of(message.get("content")), list(_calls_of(message.get("tool_calls"))))


def _calls_of(calls: object) -> Iterator[tuple[str, str]]:
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield str(function.get("name") or ""), str(function.get("arguments") or "")
