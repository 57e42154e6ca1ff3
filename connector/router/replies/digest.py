"""What a reply says, in one form for every API, and its digest."""

import hashlib
from dataclasses import dataclass, field

import orjson

DIGEST_BYTES = 12


@dataclass(slots=True)
class Said:
    """``calls``: name and arguments of each tool call."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def digest(said: Said) -> bytes:
    return hashlib.blake2b(orjson.dumps([said.text.strip(), said.calls]), digest_size=DIGEST_BYTES).digest()


def text_of(content: object) -> str:
    """The text of a content that is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return ""
