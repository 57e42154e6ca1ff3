"""Replies of the responses API: several items in a row, all of which come back as input."""

from collections.abc import Iterable, Mapping, Sequence

import orjson

from connector.router.replies.digest import Said, text_of
from connector.router.replies.events import data_events

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}


def said_in_prompt(items: Sequence[object], position: int) -> Said | None:
    """All items of the reply; reasoning, which clients may leave out, counts for nothing."""
    said = Said()
    num_said = 0
    for item in items[position:]:
        if not isinstance(item, dict) or not _is_output(item):
            break
        num_said += item.get("type") != "reasoning"
        _add(said, item)
    return said if num_said else None


def said_in_body(body: bytes) -> Said:
    return _said(orjson.loads(body)["output"])


def said_in_events(body: bytes) -> Said:
    """The last event holds the whole response."""
    *_, last = data_events(body)
    return _said(orjson.loads(last)["response"]["output"])


def _said(items: Iterable[Mapping[str, object]]) -> Said:
    said = Said()
    for item in items:
        _add(said, item)
    return said


def _is_output(item: Mapping[str, object]) -> bool:
    kind = item.get("type")
    return kind in _CALLS or kind == "reasoning" or item.get("role") == "assistant"


def _add(said: Said, item: Mapping[str, object]) -> None:
    kind = item.get("type")
    if isinstance(kind, str) and kind in _CALLS:
        said.calls.append((str(item.get("name") or ""), str(item.get(_CALLS[kind]) or "")))
    elif item.get("role") == "assistant":
        said.text += text_of(item.get("content"))
