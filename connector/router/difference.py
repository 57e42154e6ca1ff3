"""Names the first message in which a prompt differs from the turn whose KV it was offered; never its text."""

from collections.abc import Sequence

import msgspec

from connector.router.chain import PACKED_BYTES
from connector.router.known import KnownTurn
from connector.router.matching import Prompt
from connector.router.rewriting import PART_BYTES, num_common_parts

TOOLS, TEMPLATE = "tools", "template"
ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
DIFFERENCES = ROLES | {TOOLS, TEMPLATE, "other"}

REPLY_MARGIN_TOKENS = 128
"""Engines tell the block in which token ids part, so one that begins this little before a reply may hold its start."""


class Difference(msgspec.Struct, frozen=True):
    """``index`` is absent where no message differs. ``role``: the message's, ``tools`` (or another model), or
    ``template``: token ids differ before the reply though all messages agree, as with a template that prints the date.
    """

    index: int | None
    role: str


class Comparison(msgspec.Struct, frozen=True):
    """``found`` in the messages alone; else ``reply`` is the message that follows all those of the earlier turn."""

    found: Difference | None
    reply: Difference | None
    num_earlier_tokens: int

    def explain(self, diverged_at_token: int | None) -> Difference | None:
        """The difference, once the engine has said where token ids part; absent if the prompt only went on."""
        if self.found is not None or diverged_at_token is None:
            return self.found
        is_before_reply = diverged_at_token + REPLY_MARGIN_TOKENS < self.num_earlier_tokens
        return Difference(None, TEMPLATE) if is_before_reply else self.reply


def compare(source: KnownTurn, prompt: Prompt) -> Comparison | None:
    """Absent for texts, and for a source that another process served: its messages aren't known here."""
    if prompt.messages is None or not source.parts:
        return None
    num_earlier = len(source.parts) // PART_BYTES
    reply = _difference_at(num_earlier, prompt.messages)
    return Comparison(_first_difference(source, prompt, prompt.messages), reply, source.num_prompt_tokens)


def _first_difference(source: KnownTurn, prompt: Prompt, messages: Sequence[object]) -> Difference | None:
    index = num_common_parts(source.parts, prompt.parts)
    if index and source.head != prompt.chain[:PACKED_BYTES]:
        return Difference(None, TOOLS)
    if index * PART_BYTES in (len(source.parts), len(prompt.parts)):
        return None
    return _difference_at(index, messages)


def _difference_at(index: int, messages: Sequence[object]) -> Difference | None:
    if index >= len(messages):
        return None
    message = messages[index]
    role = message.get("role") if isinstance(message, dict) else None
    return Difference(index, role if isinstance(role, str) and role in ROLES else "other")
