"""Pure decision: how many tokens of a prompt a leg may take from an offer, and the one reason code for it."""

import msgspec

from connector.engine.digests import num_common_blocks
from connector.engine.offers import KvOffer
from connector.protocol import Decision, PolicyValues


class PromptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """``tail_digest`` covers the whole prompt. ``num_local_tokens``: block-aligned tokens already cached here."""

    num_tokens: int
    num_local_tokens: int
    block_size: int
    digests: list[bytes]
    tail_digest: bytes


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """``num_pull_tokens`` beyond the local ones; ``num_blocks`` of the offer to keep; 0 tokens: recompute."""

    decision: Decision
    num_verified_tokens: int = 0
    num_pull_tokens: int = 0
    num_blocks: int = 0
    is_whole_prompt: bool = False


def match_prefill(offer: KvOffer, prompt: PromptFacts, policy: PolicyValues) -> Match:
    """D→P: the longest common whole-block prefix, if it brings at least ``kv_recompute_threshold`` tokens."""
    num_common = num_common_blocks(prompt.digests, offer.digests)
    verified = num_common * prompt.block_size
    if num_common == 0:
        return Match(decision=Decision.PREFIX_DIVERGED)
    missing = verified - prompt.num_local_tokens
    if missing <= 0:
        return Match(decision=Decision.LOCAL_PREFIX_HIT, num_verified_tokens=verified)
    if missing < policy.kv_recompute_threshold:
        return Match(decision=Decision.BELOW_THRESHOLD, num_verified_tokens=verified)
    is_all = num_common == offer.num_tokens // offer.block_size
    return Match(
        decision=Decision.PULLED if is_all else Decision.TRIMMED_PREFIX_DIVERGED,
        num_verified_tokens=verified,
        num_pull_tokens=missing,
        num_blocks=num_common,
    )


def match_decode(offer: KvOffer, prompt: PromptFacts, *, allow_partial: bool) -> Match:
    """P→D: the whole prompt when length and tail digest agree, else the common whole blocks; no threshold applies.

    The prompt was just computed for this very request, so a pull is always meant, however short. ``allow_partial`` is
    false for caches that are only valid as a whole (sliding windows, recurrent state).
    """
    same_tail = offer.num_tokens == prompt.num_tokens and offer.tail_digest == prompt.tail_digest
    num_common = num_common_blocks(prompt.digests, offer.digests)
    if same_tail and num_common == prompt.num_tokens // prompt.block_size:
        missing = prompt.num_tokens - prompt.num_local_tokens
        num_blocks = -(-prompt.num_tokens // prompt.block_size)
        return _decode_match(Decision.PULLED, prompt.num_tokens, missing, num_blocks, is_whole_prompt=True)
    if not allow_partial:
        return Match(decision=Decision.UNSUPPORTED)
    if num_common == 0:
        return Match(decision=Decision.PREFIX_DIVERGED)
    verified = num_common * prompt.block_size
    missing = verified - prompt.num_local_tokens
    return _decode_match(Decision.TRIMMED_PREFIX_DIVERGED, verified, missing, num_common, is_whole_prompt=False)


def _decode_match(decision: Decision, verified: int, missing: int, num_blocks: int, *, is_whole_prompt: bool) -> Match:
    if missing <= 0:
        return Match(decision=Decision.LOCAL_PREFIX_HIT, num_verified_tokens=verified, num_blocks=num_blocks)
    return Match(
        decision=decision,
        num_verified_tokens=verified,
        num_pull_tokens=missing,
        num_blocks=num_blocks,
        is_whole_prompt=is_whole_prompt,
    )
