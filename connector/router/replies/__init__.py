"""Digests of replies: tell apart conversations that began with the very same prompt.

The digest of a served reply is taken only when another session has an identical prompt, so the usual turn pays nothing.
It covers what clients send back: the text without surrounding blanks, and each tool call's name and arguments.
"""

from collections.abc import Callable, Sequence

import orjson

from connector.router.replies import chat, messages, responses
from connector.router.replies.digest import Said, digest
from connector.router.requests.endpoint import Endpoint

_IN_PROMPT: dict[Endpoint, Callable[[Sequence[object], int], Said | None]] = {
    Endpoint.CHAT: chat.said_in_prompt,
    Endpoint.RESPONSES: responses.said_in_prompt,
    Endpoint.MESSAGES: messages.said_in_prompt,
}
_IN_BODY: dict[Endpoint, Callable[[bytes], Said]] = {
    Endpoint.CHAT: chat.said_in_body,
    Endpoint.RESPONSES: responses.said_in_body,
    Endpoint.MESSAGES: messages.said_in_body,
}
_IN_EVENTS: dict[Endpoint, Callable[[bytes], Said]] = {
    Endpoint.CHAT: chat.said_in_events,
    Endpoint.RESPONSES: responses.said_in_events,
    Endpoint.MESSAGES: messages.said_in_events,
}


def digest_in_prompt(endpoint: Endpoint, items: Sequence[object], position: int) -> bytes:
    """Digest of the reply that stands at ``position`` of a prompt's messages; empty if there is none."""
    read = _IN_PROMPT.get(endpoint)
    said = read(items, position) if read is not None else None
    return digest(said) if said is not None else b""


def digest_of_reply(endpoint: Endpoint, body: bytes, is_stream: bool) -> bytes:
    """Digest of a reply as the engine sent it; empty when it can't be told."""
    read = (_IN_EVENTS if is_stream else _IN_BODY).get(endpoint)
    if read is None or not body:
        return b""
    try:
        return digest(read(body))
    except (orjson.JSONDecodeError, AttributeError, TypeError, LookupError, ValueError):
        return b""
