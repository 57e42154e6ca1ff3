"""Responses: ``instructions``, ``input`` items and tools.

vLLM keeps earlier responses in the memory of one API server, by id and for every caller alike. Here an id is bound to
its tenant and its engine (see ``connector.router.earlier``), and the turn goes there in one leg: no other engine can
render the prompt. What would outlive the turn (``background``) or needs a store that vLLM doesn't have
(``conversation``) is refused.
"""

from connector.router.errors import bad_request
from connector.router.requests.content import NO, ONE, Content, PrefillChanges
from connector.router.requests.endpoint import OneLeg
from connector.router.requests.members import Fields, flag, is_set, list_of_objects, member, refuse_foreign, value_of

PREFILL = PrefillChanges(
    frozenset(("stream_options", "background")), {"stream": NO, "max_output_tokens": ONE, "store": NO}
)

ENGINE_TOOLS = frozenset(("code_interpreter", "container", "mcp", "web_search_preview"))
"""Tools that a vLLM with a tool server calls itself: the model then runs several times within one request."""

MAX_ID_CHARS = 128

NOT_HERE = {
    "n": "A response is one; send several requests.",
    "max_tokens": "Use 'max_output_tokens'.",
    "max_completion_tokens": "Use 'max_output_tokens'.",
    "min_tokens": "Use chat completions.",
    "messages": "Use 'input'.",
    "response_format": "Use 'text.format'.",
    "logprobs": "Use 'include' and 'top_logprobs'.",
    "prompt_logprobs": "Use chat completions.",
    "echo": "Use completions.",
    "use_beam_search": "Use chat completions.",
}
"""Other APIs' fields, which vLLM 0.32 ignores here."""


def read(fields: Fields) -> Content:
    refuse_foreign(fields, NOT_HERE)
    _refuse_state(fields)
    previous = _previous(fields)
    tools = value_of(fields, "tools")
    return Content(
        one_leg=_one_leg(tools, previous),
        messages=None if previous else _messages(fields),
        root=tools,
        previous_response_id=previous,
    )


def _refuse_state(fields: Fields) -> None:
    if flag(fields, "background"):
        raise bad_request(
            "'background' is not supported: a response ends with its request. Leave it out, and use 'stream' for long "
            "replies.",
            "background",
        )
    if is_set(fields, "conversation"):
        raise bad_request(
            "'conversation' is not supported: engines keep no conversations. Send the earlier items in 'input'; "
            "'conversation_id' or the header 'X-Session-ID' may name the conversation.",
            "conversation",
        )


def _previous(fields: Fields) -> str:
    previous = value_of(fields, "previous_response_id")
    if previous is None or previous == "":
        return ""
    if not isinstance(previous, str) or len(previous) > MAX_ID_CHARS:
        message = f"'previous_response_id' must be a string of at most {MAX_ID_CHARS} characters."
        raise bad_request(message, "previous_response_id")
    return previous


def _messages(fields: Fields) -> list[object]:
    text = value_of(fields, "input")
    is_text = isinstance(text, str)
    items: list[object] = [{"role": "user", "content": text}] if is_text else list_of_objects(fields, "input", "items")
    instructions = value_of(fields, "instructions")
    head: list[object] = [{"role": "system", "content": instructions}] if instructions else []
    return head + [bare_item(item) for item in items]


def bare_item(item: object) -> object:
    """Without what says nothing to the model and may differ when an item is sent back."""
    if not isinstance(item, dict):
        return item
    return {name: value for name, value in item.items() if name not in ("id", "status")}


def _one_leg(tools: object, previous: str) -> OneLeg | None:
    listed = tools if isinstance(tools, list) else []
    if any(member(tool, "type") in ENGINE_TOOLS for tool in listed if isinstance(member(tool, "type"), str)):
        return OneLeg.ENGINE_TOOLS
    return OneLeg.EARLIER_RESPONSE if previous else None
