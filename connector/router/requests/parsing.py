"""One request, parsed and validated once."""

from collections.abc import Callable, Mapping

import msgspec

from connector.router.requests import chat, completions, messages, responses
from connector.router.requests.content import Content, PrefillChanges
from connector.router.requests.endpoint import Endpoint, OneLeg
from connector.router.requests.members import Fields, flag, model_of, split
from connector.router.requests.session_key import agent_key, own_key
from connector.router.requests.stripping import strip

_READERS: dict[Endpoint, Callable[[Fields], Content]] = {
    Endpoint.CHAT: chat.read,
    Endpoint.COMPLETIONS: completions.read,
    Endpoint.RESPONSES: responses.read,
    Endpoint.MESSAGES: messages.read,
}

PREFILL_CHANGES: dict[Endpoint, PrefillChanges] = {
    Endpoint.CHAT: chat.PREFILL,
    Endpoint.COMPLETIONS: completions.PREFILL,
    Endpoint.RESPONSES: responses.PREFILL,
    Endpoint.MESSAGES: messages.PREFILL,
}


class TurnRequest(msgspec.Struct, frozen=True):
    """``fields`` are the client's own bytes, member by member; ``messages``, ``root`` and ``prompt`` are decoded only
    to be hashed. ``session_id`` is set where the request goes on from an earlier response of that session.
    """

    endpoint: Endpoint
    model: str
    stream: bool
    fields: Fields
    client_key: str
    one_leg: OneLeg | None
    messages: list[object] | None
    root: object
    prompt: str | list[int] | None
    previous_response_id: str = ""
    session_id: str = ""

    def let_go(self) -> None:
        """Frees the prompt once no leg needs it any more: a long stream holds none of it."""
        self.fields.clear()
        if self.messages is not None:
            self.messages.clear()


def parse_request(endpoint: Endpoint, body: bytes, headers: Mapping[str, str]) -> TurnRequest:
    """The validated request. Raises ``ApiError`` 400 that names the field."""
    fields = split(body)
    key = own_key(fields, headers)
    strip(fields)
    content = _READERS[endpoint](fields)
    if not key and not content.previous_response_id:
        key = agent_key(fields, headers)
    return TurnRequest(
        endpoint=endpoint,
        model=model_of(fields),
        stream=flag(fields, "stream"),
        fields=fields,
        client_key=key,
        one_leg=content.one_leg,
        messages=content.messages,
        root=content.root,
        prompt=content.prompt,
        previous_response_id=content.previous_response_id,
    )
