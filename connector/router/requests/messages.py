"""Anthropic's messages: ``system``, ``messages`` and tools.

vLLM renders them as a chat, without ``cache_control`` and without the attribution line that Claude Code puts first and
changes with every request. Chains leave both out, so that a turn is recognised in spite of them.
"""

from connector.router.errors import bad_request
from connector.router.requests.content import NO, ONE, Content, PrefillChanges
from connector.router.requests.members import Fields, list_of_objects, refuse_foreign, value_of

PREFILL = PrefillChanges(frozenset(("stream_options",)), {"stream": NO, "max_tokens": ONE})

NOT_HERE = {
    "n": "A message is one; send several requests.",
    "max_completion_tokens": "Use 'max_tokens'.",
    "max_output_tokens": "Use 'max_tokens'.",
    "min_tokens": "Use chat completions.",
    "stop": "Use 'stop_sequences'.",
    "response_format": "Use 'output_config.format'.",
    "logprobs": "Use chat completions.",
    "top_logprobs": "Use chat completions.",
    "prompt_logprobs": "Use chat completions.",
    "echo": "Use completions.",
    "use_beam_search": "Use chat completions.",
}
"""Other APIs' fields, which vLLM 0.32 ignores here."""

MAX_DEPTH = 2
"""Blocks within blocks that are looked through; the API has no deeper ones."""

ATTRIBUTION = "x-anthropic-billing-header"


def read(fields: Fields) -> Content:
    refuse_foreign(fields, NOT_HERE)
    messages = list_of_objects(fields, "messages", "messages")
    limit = value_of(fields, "max_tokens")
    if type(limit) is not int or limit < 1:
        raise bad_request("'max_tokens' must be a whole number of at least 1.", "max_tokens")
    system = _blocks(value_of(fields, "system"))
    head: list[object] = [{"role": "system", "content": system}] if system else []
    return Content(messages=head + [_bare_message(message) for message in messages], root=_bare(_tools(fields)))


def _tools(fields: Fields) -> object:
    return value_of(fields, "tools") if "tools" in fields else None


def _bare_message(message: object) -> object:
    if not isinstance(message, dict):
        return message
    return {**message, "content": _blocks(message.get("content"))}


def _blocks(content: object) -> object:
    """A text and a list of one text block are the same to the model."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return content
    return [_bare(block) for block in content if not _is_attribution(block)]


def _is_attribution(block: object) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and text.startswith(ATTRIBUTION)


def _bare(value: object, depth: int = MAX_DEPTH) -> object:
    """Without ``cache_control``, which moves on with every turn: of a block, of those in a tool's result, of tools."""
    if isinstance(value, list):
        return [_bare(item, depth) if isinstance(item, dict) else item for item in value]
    if not isinstance(value, dict) or ("cache_control" not in value and "content" not in value):
        return value
    bare = {name: member for name, member in value.items() if name != "cache_control"}
    if isinstance(bare.get("content"), list) and depth:
        bare["content"] = _bare(bare["content"], depth - 1)
    return bare
