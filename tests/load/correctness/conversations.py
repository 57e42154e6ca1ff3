"""A conversation as messages of token ids, and what each change of a turn makes of it. Pure.

The first message is the system prompt with the date in it; tool results and reasoning are messages of their own, so
that they can be reordered and stripped as agents do it.
"""

import random

import msgspec

from tests.load.correctness.histories import BLOCK_SIZE, Turn

VOCABULARY = range(300, 7900)
MARKERS = {"system": 290, "date": 291, "user": 292, "assistant": 293, "reasoning": 294, "tool": 295, "summary": 296}
"""First token of each message, outside of the vocabulary of contents."""

MIN_TOKENS, MAX_TOKENS = 100, 700
DATE_TOKENS = 4


class Piece(msgspec.Struct, frozen=True):
    kind: str
    tokens: tuple[int, ...]


Conversation = tuple[Piece, ...]


def tokens_of(conversation: Conversation) -> tuple[int, ...]:
    return tuple(token for piece in conversation for token in piece.tokens)


def piece(kind: str, num_tokens: int, source: random.Random) -> Piece:
    return Piece(kind, (MARKERS[kind], *(source.choice(VOCABULARY) for _ in range(max(1, num_tokens)))))


def opening(turn: Turn) -> Conversation:
    """A conversation of 100 to 700 tokens that already has some exchanges with tools."""
    source = random.Random(turn.seed)
    pieces = [piece("system", 12, source), piece("date", DATE_TOKENS, source), piece("system", 40, source)]
    target = MIN_TOKENS + turn.where * (MAX_TOKENS - 150 - MIN_TOKENS) // 100
    while len(tokens_of(tuple(pieces))) < target:
        kinds = ("user", "reasoning", "tool", "tool", "assistant")
        pieces += [piece(kind, source.randrange(3, 30), source) for kind in kinds]
    return _fitted((*pieces, piece("user", turn.size, source)), turn)


def next_prompt(held: Conversation, turn: Turn, branch: int = 0) -> Conversation:
    """``held`` ends with the last reply. Branches of one turn differ in what they append."""
    source = random.Random(f"{turn.seed}/{branch}")
    changed = CHANGE_OF[turn.change](held, turn, source)
    return _fitted(changed, turn, source, grows=turn.change not in SHRINKING)


def with_reply(prompt: Conversation, reply: tuple[int, ...]) -> Conversation:
    """The first half of a longer reply counts as its reasoning."""
    half = len(reply) // 2
    parts = (Piece("reasoning", reply[:half]), Piece("assistant", reply[half:]))
    return (*prompt, *(part for part in parts if part.tokens))


def decode_prompt(prompt: Conversation, turn: Turn) -> Conversation:
    """What the decode leg is sent, when it differs from the prefill leg."""
    source = random.Random(turn.seed + 1)
    if turn.decode_prompt == "longer":
        return (*prompt, Piece("user", (source.choice(VOCABULARY),)))
    if turn.decode_prompt == "shorter":
        return _first_tokens(prompt, max(2, len(tokens_of(prompt)) - 1 - turn.size))
    return _edited(prompt, turn.where, source) if turn.decode_prompt == "edited" else prompt


# ------------------------------------------------ changes


def _append(held: Conversation, turn: Turn, source: random.Random) -> Conversation:
    return (*held, piece("user", turn.size, source))


def _tool_results(held: Conversation, turn: Turn, source: random.Random) -> Conversation:
    results = [piece("tool", size, source) for size in (9, 17, turn.size)]
    return (*held, *results)


def _edit(held: Conversation, turn: Turn, source: random.Random) -> Conversation:
    return _append(_edited(held, turn.where, source), turn, source)


def _strip_reasoning(held: Conversation, turn: Turn, source: random.Random) -> Conversation:
    return _append(tuple(part for part in held if part.kind != "reasoning"), turn, source)


def _without_last_reply(held: Conversation) -> Conversation:
    end = len(held)
    while end > 1 and held[end - 1].kind in ("assistant", "reasoning"):
        end -= 1
    return held[:end]


def _regenerate(held: Conversation, _turn: Turn, _source: random.Random) -> Conversation:
    return _without_last_reply(held)


def _branch(held: Conversation, turn: Turn, source: random.Random) -> Conversation:
    kept = max(3, len(held) * turn.where // 100)
    return _append(held[:kept], turn, source)


def _cut(held: Conversation, turn: Turn, _source: random.Random) -> Conversation:
    """A strict prefix, of at least one block and a bit."""
    whole = tokens_of(held)
    length = max(min(BLOCK_SIZE + 2, len(whole)), len(whole) * turn.where // 100)
    return _first_tokens(held, length)


def _resend(held: Conversation, _turn: Turn, _source: random.Random) -> Conversation:
    return held


def _reorder_tools(held: Conversation, turn: Turn, source: random.Random) -> Conversation:
    tools = [part for part in held if part.kind == "tool"]
    rotated = iter(tools[1:] + tools[:1])
    return _append(tuple(next(rotated) if part.kind == "tool" else part for part in held), turn, source)


def _compact(held: Conversation, turn: Turn, source: random.Random) -> Conversation:
    start, middle = 3, max(3, (len(held) + 3) // 2)
    return _append((*held[:start], piece("summary", 24, source), *held[middle:]), turn, source)


def _drop_oldest(held: Conversation, turn: Turn, source: random.Random) -> Conversation:
    return _append((*held[:3], *held[3 + max(1, len(held) // 3) :]), turn, source)


def _date(held: Conversation, turn: Turn, source: random.Random) -> Conversation:
    today = piece("date", DATE_TOKENS, source)
    return _append(tuple(today if part.kind == "date" else part for part in held), turn, source)


def _disjoint(_held: Conversation, turn: Turn, source: random.Random) -> Conversation:
    return (piece("system", 100, source), piece("user", turn.size, source))


SHRINKING = frozenset({"cut", "regenerate", "resend"})
"""Changes that only make sense as a prefix of what was held: they are aligned by cutting."""

CHANGE_OF = {
    "append": _append,
    "tool_results": _tool_results,
    "edit": _edit,
    "strip_reasoning": _strip_reasoning,
    "regenerate": _regenerate,
    "branch": _branch,
    "cut": _cut,
    "resend": _resend,
    "reorder_tools": _reorder_tools,
    "compact": _compact,
    "drop_oldest": _drop_oldest,
    "date": _date,
    "disjoint": _disjoint,
}


# ------------------------------------------------ lengths


def _fitted(
    conversation: Conversation, turn: Turn, source: random.Random | None = None, *, grows: bool = True
) -> Conversation:
    """At most ``MAX_TOKENS``, the oldest messages dropped first unless it has to stay a prefix; then aligned."""
    while grows and len(tokens_of(conversation)) > MAX_TOKENS - BLOCK_SIZE and len(conversation) > 4:
        conversation = (*conversation[:3], *conversation[4:])
    conversation = _first_tokens(conversation, MAX_TOKENS - BLOCK_SIZE if grows else MAX_TOKENS)
    if turn.align == "none":
        return conversation
    length = len(tokens_of(conversation))
    extra = turn.num_reply_tokens - 1 if turn.align == "lease" else 0
    missing = (turn.align_offset - length - extra) % BLOCK_SIZE
    if grows:
        return (
            (*conversation, piece("user", missing - 1, source or random.Random(turn.seed)))
            if missing > 1
            else (_padded(conversation, missing))
        )
    return _first_tokens(conversation, length - (-missing) % BLOCK_SIZE)


def _padded(conversation: Conversation, num_tokens: int) -> Conversation:
    return (*conversation, Piece("user", (MARKERS["user"],) * num_tokens)) if num_tokens else conversation


def _first_tokens(conversation: Conversation, length: int) -> Conversation:
    kept: list[Piece] = []
    for part in conversation:
        if length <= 0 and kept:
            break
        kept.append(Piece(part.kind, part.tokens[: max(1, length)]))
        length -= len(part.tokens)
    return tuple(kept)


def _edited(conversation: Conversation, where: int, source: random.Random) -> Conversation:
    """Two tokens are others than before, at that percentage."""
    tokens = list(tokens_of(conversation))
    at = min(len(tokens) - 1, len(tokens) * where // 100)
    tokens[at : at + 2] = [_other_than(token, source) for token in tokens[at : at + 2]]
    parts, start = [], 0
    for part in conversation:
        parts.append(Piece(part.kind, tuple(tokens[start : start + len(part.tokens)])))
        start += len(part.tokens)
    return tuple(parts)


def _other_than(token: int, source: random.Random) -> int:
    return next(other for other in iter(lambda: source.choice(VOCABULARY), None) if other != token)
