"""What a generated conversation does, turn by turn: plain data that is drawn from a seed, stored as JSON and shrunk."""

import random

import msgspec

BLOCK_SIZE = 32

CHANGES = {
    "append": 5,
    "tool_results": 3,
    "edit": 3,
    "strip_reasoning": 3,
    "regenerate": 2,
    "branch": 2,
    "cut": 3,
    "resend": 2,
    "reorder_tools": 2,
    "compact": 2,
    "drop_oldest": 1,
    "date": 2,
    "disjoint": 1,
}
"""How a turn's messages come from those of the turn before, with weights."""

LEASE_FATES = {"held": 16, "extended": 1, "released": 2, "expired": 1, "expiring": 1}
"""What happens to the offered lease before the turn uses its offer."""

DECODE_PROMPTS = {"same": 12, "longer": 1, "shorter": 1, "edited": 1}
"""The decode leg's prompt against the prefill leg's: they differ when router and engine disagree on a template."""

REPLY_TOKENS = (1, 1, 2, 3, 5, 8, 34)
THRESHOLDS = (1, 32, 64, 64, 64, 200)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults are the simplest turn; every field is independent of the others, so that any may be reset.

    ``where`` is a percentage of the prompt; ``align`` makes the prompt, or the whole lease with the reply, as long as a
    multiple of the block size plus ``align_offset``. ``offered`` counts back from the newest lease.
    """

    change: str = "append"
    seed: int = 0
    size: int = 20
    where: int = 50
    align: str = "none"
    align_offset: int = 0
    num_reply_tokens: int = 1
    is_streamed: bool = False
    adapter: int = 0
    tenant: int = 0
    caches_prefill: bool = False
    lease_fate: str = "held"
    offered: int = 0
    decode_prompt: str = "same"
    num_branches: int = 1
    num_fillers: int = 0
    threshold_tokens: int = 64
    is_rechecked: bool = False


class History(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    turns: tuple[Turn, ...]


def generate(seed: int) -> History:
    """Two to five turns; the same seed gives the same history."""
    source = random.Random(seed)
    turns = [_draw_turn(source, adapter=int(source.random() < 0.08), tenant=0)]
    for _ in range(source.choice((1, 2, 2, 3, 4))):
        last = turns[-1]
        adapter = source.choice((0, 1, 2)) if source.random() < 0.05 else last.adapter
        tenant = last.tenant + (source.random() < 0.06)
        turns.append(_draw_turn(source, adapter=adapter, tenant=tenant))
    return History(seed=seed, turns=tuple(turns))


def _draw_turn(source: random.Random, *, adapter: int, tenant: int) -> Turn:
    fate = _weighted(source, LEASE_FATES)
    return Turn(
        change=_weighted(source, CHANGES),
        seed=source.getrandbits(32),
        size=source.choice((1, 5, 20, 20, 40, 80, 150)),
        where=source.randrange(100),
        align=source.choice(("none", "none", "prompt", "lease")),
        align_offset=source.choice((-1, 0, 1)),
        num_reply_tokens=source.choice(REPLY_TOKENS),
        is_streamed=source.random() < 0.5,
        adapter=adapter,
        tenant=tenant,
        caches_prefill=source.random() < 0.5,
        lease_fate=fate,
        offered=1 if source.random() < 0.08 else 0,
        decode_prompt=_weighted(source, DECODE_PROMPTS),
        num_branches=source.choice((2, 3)) if source.random() < 0.07 else 1,
        num_fillers=source.choice((1, 2)) if fate in ("released", "expired") or source.random() < 0.1 else 0,
        threshold_tokens=source.choice(THRESHOLDS),
        is_rechecked=fate in ("released", "expired") or source.random() < 0.25,
    )


def _weighted(source: random.Random, weights: dict[str, int]) -> str:
    return source.choices(list(weights), list(weights.values()))[0]
