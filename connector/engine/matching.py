"""Pure decision: how many tokens of a prompt a leg may take from an offer, and the one reason code for it."""

from collections.abc import Callable

import msgspec

from connector.engine.cache_shape import CacheShape
from connector.engine.digests import num_common_blocks
from connector.engine.offers import KvOffer
from connector.protocol import Decision, PolicyValues, Role


class PromptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """``tail_of(n)``: digest of the first ``n`` tokens, partial last block included. ``num_local_tokens``: whole blocks
    of tokens already cached here."""

    num_tokens: int
    num_local_tokens: int
    block_size: int
    digests: list[bytes]
    tail_of: Callable[[int], bytes]


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """``num_pull_tokens`` beyond the local ones; ``num_blocks`` of the offer to keep; 0 tokens: recompute.

    ``is_whole_offer``: every token of the offer was verified, those of its partial last block too.
    """

    decision: Decision
    num_verified_tokens: int = 0
    num_pull_tokens: int = 0
    num_blocks: int = 0
    is_whole_offer: bool = False


def match_prefill(offer: KvOffer, prompt: PromptFacts, policy: PolicyValues, shape: CacheShape) -> Match:
    """D→P: the longest common whole-block prefix, if it brings at least ``kv_recompute_threshold`` tokens.

    A cache that isn't valid in any prefix gives all of its tokens, partial block included, or what is still exact.
    """
    match = _verified(offer, prompt, shape, takes_tail=not shape.is_plain)
    if match.num_pull_tokens and match.num_pull_tokens < policy.kv_recompute_threshold:
        return Match(decision=Decision.BELOW_THRESHOLD, num_verified_tokens=match.num_verified_tokens)
    return match if match.num_pull_tokens else msgspec.structs.replace(match, num_blocks=0, is_whole_offer=False)


def match_decode(offer: KvOffer, prompt: PromptFacts, shape: CacheShape) -> Match:
    """P→D: the whole prompt when length and tail digest agree, else the common whole blocks; no threshold applies.

    The prompt was just computed for this very request, so a pull is always meant, however short.
    """
    return _verified(offer, prompt, shape, takes_tail=not shape.is_plain or offer.num_tokens == prompt.num_tokens)


def _verified(offer: KvOffer, prompt: PromptFacts, shape: CacheShape, *, takes_tail: bool) -> Match:
    """The most tokens that are common to offer and prompt and that the offered blocks are exact for."""
    num_common = num_common_blocks(prompt.digests, offer.digests) * prompt.block_size
    is_whole = takes_tail and _extends(prompt, offer, num_common)
    limit = prompt.num_tokens - shape.num_spared
    candidates = (offer.num_tokens if is_whole else 0, num_common)
    for candidate in candidates:
        verified = min(candidate, limit)
        if shape.has(offer.block_ids, offer.num_tokens, verified):
            return _pull(offer, prompt, verified, is_whole=is_whole and candidate == offer.num_tokens)
    return Match(decision=Decision.UNSUPPORTED if any(candidates) else Decision.PREFIX_DIVERGED)


def _extends(prompt: PromptFacts, offer: KvOffer, num_common: int) -> bool:
    """Whether the prompt begins with every token of the offer."""
    is_long_enough = offer.num_tokens <= prompt.num_tokens
    has_whole_blocks = num_common == offer.num_tokens // offer.block_size * offer.block_size
    return is_long_enough and has_whole_blocks and prompt.tail_of(offer.num_tokens) == offer.tail_digest


def _pull(offer: KvOffer, prompt: PromptFacts, verified: int, *, is_whole: bool) -> Match:
    num_blocks = -(-verified // prompt.block_size)
    missing = verified - prompt.num_local_tokens
    if missing <= 0:
        return Match(decision=Decision.LOCAL_PREFIX_HIT, num_verified_tokens=verified, num_blocks=num_blocks)
    is_all = is_whole or (
        offer.role is Role.DECODE and verified == offer.num_tokens // offer.block_size * offer.block_size
    )
    return Match(
        decision=Decision.PULLED if is_all else Decision.TRIMMED_PREFIX_DIVERGED,
        num_verified_tokens=verified,
        num_pull_tokens=missing,
        num_blocks=num_blocks,
        is_whole_offer=is_whole,
    )
