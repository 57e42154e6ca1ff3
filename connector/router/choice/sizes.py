"""How long a prompt is and how much of it a lease covers, in tokens, without tokenizing it."""

from dataclasses import dataclass

import orjson

from connector.router.chain import num_bytes_of_chunks
from connector.router.placement import Placement
from connector.router.requests import TurnRequest

PROMPT_MEMBERS = ("messages", "input", "prompt", "tools", "system", "instructions", "documents")


@dataclass(frozen=True, slots=True)
class PromptSize:
    """``num_bytes`` of JSON. ``num_common``: tokens from the start that the offered lease has too. ``is_exact``:
    token ids were given, which need no guess."""

    num_bytes: int
    num_tokens: int
    num_common: int
    is_exact: bool = False


def size_of(request: TurnRequest, placement: Placement, tokens_per_byte: float) -> PromptSize:
    """The estimate that the turn is placed by. Reads the messages that no lease covers, and no others."""
    num_bytes = sum(memoryview(request.fields[name]).nbytes for name in PROMPT_MEMBERS if name in request.fields)
    lease = placement.lease
    is_exact = isinstance(request.prompt, list)
    total = len(request.prompt) if isinstance(request.prompt, list) else max(1, round(num_bytes * tokens_per_byte))
    if lease is None or not placement.num_common:
        return PromptSize(num_bytes, total, 0, is_exact)
    if request.messages is None:
        common = _common_of_text(request.prompt, placement, tokens_per_byte, lease.num_tokens)
        return PromptSize(num_bytes, total, min(common, total), is_exact)
    num_covered = placement.num_common + placement.is_continued
    uncovered = request.messages[num_covered:]
    new = round(_num_bytes(uncovered) * tokens_per_byte)
    if placement.is_continued:
        return PromptSize(num_bytes, lease.num_tokens + new, lease.num_tokens)
    return PromptSize(num_bytes, total, max(0, min(total - new, lease.num_tokens)))


def _common_of_text(
    prompt: str | list[int] | None, placement: Placement, tokens_per_byte: float, num_leased: int
) -> int:
    """Chunks of a text's bytes, or of token ids of eight bytes each. A lease goes beyond the last whole chunk."""
    if placement.is_continued:
        return num_leased
    num_bytes = num_bytes_of_chunks(placement.num_common)
    tokens = num_bytes // 8 if isinstance(prompt, list) else round(num_bytes * tokens_per_byte)
    return min(tokens, num_leased)


def _num_bytes(messages: list[object]) -> int:
    """Of JSON; what was read is nested no deeper than it can be written, since it was hashed."""
    return len(orjson.dumps(messages)) if messages else 0
