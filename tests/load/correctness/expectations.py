"""What a leg has to report, worked out from token ids alone. Pure, and independent of the connector's own matching."""

import msgspec

from connector.protocol import Decision, Role
from tests.load.correctness.histories import BLOCK_SIZE

Tokens = tuple[int, ...]


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """What a source was asked to hold. ``may_be_gone``: its lease ended, or may have, before the read was proved."""

    tokens: Tokens
    adapter: int
    tenant: str
    is_gone: bool = False
    may_be_gone: bool = False


class LegFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One leg as it was sent. ``num_local_tokens`` is what the engine says that it found in its own cache."""

    role: Role
    prompt: Tokens
    adapter: int
    tenant: str
    threshold_tokens: int
    offered: Offered | None
    num_local_tokens: int


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """``pulled_by_decision``: for each decision that would be right, how many tokens are pulled with it."""

    num_verified_tokens: int
    pulled_by_decision: dict[Decision, int]


def num_common_tokens(mine: Tokens, theirs: Tokens) -> int:
    return next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs)))


def expect(facts: LegFacts) -> Expected:
    """In design.md's order: rejected, then no common block, local hit, below the threshold, then the transfer."""
    offered = facts.offered
    if offered is None:
        return _nothing(Decision.NO_PLACEMENT)
    if offered.tenant != facts.tenant:
        return _nothing(Decision.REJECTED)
    verified = num_verified(facts, offered)
    if verified == 0:
        return _nothing(Decision.PREFIX_DIVERGED)
    missing = verified - facts.num_local_tokens
    if missing <= 0:
        return Expected(num_verified_tokens=verified, pulled_by_decision={Decision.LOCAL_PREFIX_HIT: 0})
    if facts.role is Role.PREFILL and missing < facts.threshold_tokens:
        return Expected(num_verified_tokens=verified, pulled_by_decision={Decision.BELOW_THRESHOLD: 0})
    outcomes: dict[Decision, int] = {}
    if not offered.is_gone:
        outcomes[_decision_of_pull(facts, offered, verified)] = missing
    if offered.is_gone or offered.may_be_gone:
        outcomes[Decision.EXPIRED] = 0
    return Expected(num_verified_tokens=verified, pulled_by_decision=outcomes)


def num_verified(facts: LegFacts, offered: Offered) -> int:
    """Tokens whose KV is the same for both: whole blocks, or all of an equal prompt that a decode engine gets."""
    if offered.adapter != facts.adapter:
        return 0
    if facts.role is Role.DECODE and offered.tokens == facts.prompt:
        return len(facts.prompt)
    return num_common_tokens(facts.prompt, offered.tokens) // BLOCK_SIZE * BLOCK_SIZE


def _decision_of_pull(facts: LegFacts, offered: Offered, verified: int) -> Decision:
    if facts.role is Role.DECODE:
        return Decision.PULLED if offered.tokens == facts.prompt else Decision.TRIMMED_PREFIX_DIVERGED
    is_all = verified == len(offered.tokens) // BLOCK_SIZE * BLOCK_SIZE
    return Decision.PULLED if is_all else Decision.TRIMMED_PREFIX_DIVERGED


def _nothing(decision: Decision) -> Expected:
    return Expected(num_verified_tokens=0, pulled_by_decision={decision: 0})


class CacheBounds:
    """The most that an engine's own prefix cache can hold of a prompt: whole blocks that it was sent before."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, int], set[Tokens]] = {}

    def note(self, engine: str, tenant: str, adapter: int, tokens: Tokens) -> None:
        whole = len(tokens) // BLOCK_SIZE * BLOCK_SIZE
        known = self._seen.setdefault((engine, tenant, adapter), set())
        known.update(tokens[:end] for end in range(BLOCK_SIZE, whole + 1, BLOCK_SIZE))

    def largest_hit(self, engine: str, tenant: str, adapter: int, prompt: Tokens) -> int:
        """vLLM computes the last token of a prompt in any case."""
        known = self._seen.get((engine, tenant, adapter), set())
        length = 0
        while length + BLOCK_SIZE < len(prompt) and prompt[: length + BLOCK_SIZE] in known:
            length += BLOCK_SIZE
        return length
