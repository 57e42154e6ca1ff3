"""Digests of assistant replies: tells apart conversations that began with the very same prompt.

The digest of a served reply is taken only when another session has an identical prompt, so the usual turn pays nothing.
It covers what clients send back: the text without surrounding blanks, and each tool call's name and arguments.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import orjson

DIGEST_BYTES = 12


def digest_of_message(message: object) -> bytes:
    """Digest of an assistant message in a request; empty for anything else."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return b""
    return _digest(_text_of(message.get("content")), list(_calls_of(message.get("tool_calls"))))


def digest_of_reply(body: bytes, is_stream: bool) -> bytes:
    """Digest of a chat reply as the engine sent it; empty when it can't be told."""
    try:
        return _digest_of_events(body) if is_stream else _digest_of_body(body)
    except (orjson.JSONDecodeError, AttributeError, TypeError, LookupError, ValueError):
        return b""


def _digest_of_body(body: bytes) -> bytes:
    return digest_of_message({"role": "assistant", **orjson.loads(body)["choices"][0]["message"]})


def _digest_of_events(body: bytes) -> bytes:
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
    return _digest("".join(text), [(name, arguments) for _, (name, arguments) in sorted(calls.items())])


def data_events(body: bytes) -> Iterator[bytes]:
    """The data of each server-sent event, whatever its line ends (WHATWG HTML, section 9.2); several lines join."""
    lines: list[bytes] = []
    for line in body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line and lines:
            yield b"\n".join(lines)
            lines = []
    if lines:
        yield b"\n".join(lines)


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return ""


def _calls_of(calls: object) -> Iterator[tuple[str, str]]:
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield str(function.get("name") or ""), str(function.get("arguments") or "")


def _digest(text: str, calls: Iterable[tuple[str, str]]) -> bytes:
    return hashlib.blake2b(orjson.dumps([text.strip(), list(calls)]), digest_size=DIGEST_BYTES).digest()
