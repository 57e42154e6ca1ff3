"""Which tokens of a peer's KV are exact by themselves, by the kinds of a model's cache groups: pure.

Most models have one group in which every token's KV stands for itself. In the others what a finished request still
holds depends on where it ended, so the same number of blocks can be right for one reader and wrong for the next.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

BlockIds = Sequence[Sequence[int]]
"""``[groups][blocks]``."""

NULL_BLOCK = 0
"""vLLM's placeholder for a block that has left the window; it holds nothing."""


class GroupKind(StrEnum):
    """``full``: every token's KV is kept. ``window``: only that in reach of the next token. ``state``: one state, after
    exactly the tokens computed. ``sharded``: blocks interleaved over context-parallel ranks. ``unknown``: not checked.
    """

    FULL = "full"
    WINDOW = "window"
    STATE = "state"
    SHARDED = "sharded"
    UNKNOWN = "unknown"


class CacheGroup(msgspec.Struct, frozen=True):
    """``window_tokens``: how many tokens a token attends to, itself included; only of kind ``window``."""

    kind: GroupKind
    block_size: int
    window_tokens: int = 0

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def first_kept_block(self, num_tokens: int) -> int:
        """After ``num_tokens`` computed ones vLLM keeps what the next token attends to, in whole blocks."""
        if self.kind is not GroupKind.WINDOW:
            return 0
        return max(0, num_tokens - self.window_tokens + 1) // self.block_size

    def has(self, num_listed: int, num_held: int, num_taken: int) -> bool:
        """Whether a list of this many blocks, held for ``num_held`` tokens, has exact KV for the first ``num_taken``.

        The list ends with the block of the last held token.
        """
        if not 0 < num_taken <= num_held:
            return False
        if self.kind in (GroupKind.STATE, GroupKind.SHARDED):
            return num_taken == num_held
        first_listed = self.num_blocks(num_held) - num_listed
        first_valid = max(first_listed, self.first_kept_block(num_held))
        return self.kind is not GroupKind.UNKNOWN and first_valid <= self.first_kept_block(num_taken)

    def cut(self, blocks: Sequence[int], num_held: int, num_taken: int) -> list[int]:
        """The list without the blocks behind ``num_taken``: vLLM pairs the ends of the reader's list and this one."""
        if self.kind in (GroupKind.STATE, GroupKind.SHARDED):
            return list(blocks)
        return list(blocks[: len(blocks) - (self.num_blocks(num_held) - self.num_blocks(num_taken))])

    def exported(self, blocks: Sequence[int], num_computed: int, num_held: int) -> list[int]:
        """vLLM's list for ``num_computed`` tokens as one for ``num_held``, without placeholders of the window.

        The two differ when a step was under way while the request stopped.
        """
        if self.kind is not GroupKind.WINDOW:
            return list(blocks)
        kept = self.cut(blocks, num_computed, num_held)
        return kept[next((index for index, block in enumerate(kept) if block != NULL_BLOCK), len(kept)) :]


class CacheShape(msgspec.Struct, frozen=True):
    """The groups whose blocks are transferred, in vLLM's order."""

    groups: tuple[CacheGroup, ...]

    @property
    def is_plain(self) -> bool:
        """Whether any whole-block prefix is exact, whoever reads it."""
        return all(group.kind is GroupKind.FULL for group in self.groups)

    @property
    def can_hand_over(self) -> bool:
        """P→D: a handoff can be exact, if only as a whole."""
        return bool(self.groups) and all(group.kind is not GroupKind.UNKNOWN for group in self.groups)

    @property
    def can_be_reused(self) -> bool:
        """D→P: whether D's blocks at the end of a reply can be exact for a later prompt.

        Not for a recurrent state: a step that was under way when the request stopped has already changed it.
        """
        return all(group.kind in (GroupKind.FULL, GroupKind.WINDOW) for group in self.groups) and bool(self.groups)

    @property
    def num_spared(self) -> int:
        """How many tokens at the end of a prompt a reader must not take.

        vLLM computes the last prompt token again when all were loaded. With full attention that rewrites equal KV.
        A window has let go by then of the first token that it attends to, and a state would take it in twice.
        """
        return 0 if all(group.kind in (GroupKind.FULL, GroupKind.SHARDED) for group in self.groups) else 1

    def has(self, block_ids: BlockIds, num_held: int, num_taken: int) -> bool:
        """Whether these blocks, held for ``num_held`` tokens, have exact KV for the first ``num_taken`` of them."""
        return len(block_ids) == len(self.groups) and all(
            group.has(len(blocks), num_held, num_taken) for group, blocks in zip(self.groups, block_ids, strict=True)
        )

    def cut(self, block_ids: BlockIds, num_held: int, num_taken: int) -> list[list[int]]:
        """What a reader of the first ``num_taken`` tokens names of them."""
        return [group.cut(ids, num_held, num_taken) for group, ids in zip(self.groups, block_ids, strict=True)]

    def exported(self, block_ids: BlockIds, num_computed: int, num_held: int) -> list[list[int]]:
        """What an offer names of the blocks that vLLM exports."""
        return [group.exported(ids, num_computed, num_held) for group, ids in zip(self.groups, block_ids, strict=True)]


def plain_shape(block_size: int) -> CacheShape:
    """One group with full attention."""
    return CacheShape((CacheGroup(GroupKind.FULL, block_size),))


# ---------------------------------------------------------------- from vLLM's configuration


def cache_shape(kv_cache_config: Any, vllm_config: Any, *, fails_by_request: bool = True) -> CacheShape:
    """By vLLM's ``KVCacheConfig``. A kind that isn't known, or a group that isn't transferred, is ``unknown``.

    ``fails_by_request``: whether vLLM hears of a failed pull by its request. Older releases hear of blocks, and their
    core dies of that with several groups. Scales that an engine takes from its own first tokens are no other engine's.
    """
    has_own_scales = getattr(vllm_config.cache_config, "calculate_kv_scales", False)
    if has_own_scales or (len(kv_cache_config.kv_cache_groups) > 1 and not fails_by_request):
        sizes = (int(group.kv_cache_spec.block_size) for group in kv_cache_config.kv_cache_groups)
        return CacheShape(tuple(CacheGroup(GroupKind.UNKNOWN, size) for size in sizes))
    parallel = vllm_config.parallel_config
    is_sharded = any(
        getattr(parallel, size, 1) > 1 for size in ("decode_context_parallel_size", "prefill_context_parallel_size")
    )
    return CacheShape(tuple(_group(group, is_sharded=is_sharded) for group in kv_cache_config.kv_cache_groups))


def _group(group: Any, *, is_sharded: bool) -> CacheGroup:
    specs = _layer_specs(group.kv_cache_spec)
    block_size = int(group.kv_cache_spec.block_size)
    found = {_of_layer(spec) for spec in specs}
    is_local = not getattr(group, "enable_kv_transfer", True) or getattr(group, "host_resident", False)
    if len(found) != 1 or is_local:
        return CacheGroup(GroupKind.UNKNOWN, block_size)
    (only,) = found
    if is_sharded and only.kind is not GroupKind.UNKNOWN:
        return CacheGroup(GroupKind.SHARDED if only.kind is GroupKind.FULL else GroupKind.UNKNOWN, block_size)
    return only


def _layer_specs(spec: Any) -> Sequence[Any]:
    return list(spec.kv_cache_specs.values()) if type(spec).__name__ == "UniformTypeKVCacheSpecs" else [spec]


def _of_layer(spec: Any) -> CacheGroup:
    """By the exact name of the class: a subclass keeps its blocks in a way of its own."""
    match type(spec).__name__:
        case "FullAttentionSpec" | "MLAAttentionSpec":
            # Attention to later tokens makes KV depend on them; a compressed state covers several tokens.
            is_usual = not getattr(spec, "non_causal", False) and getattr(spec, "tokens_per_state", 1) == 1
            kind, window = (GroupKind.FULL if is_usual else GroupKind.UNKNOWN), 0
        case "SlidingWindowSpec":
            is_usual = getattr(spec, "extra_retained_tokens", 0) == 0 and getattr(spec, "tokens_per_state", 1) == 1
            kind, window = (GroupKind.WINDOW if is_usual else GroupKind.UNKNOWN), int(spec.sliding_window)
        case "MambaSpec":
            kind, window = (GroupKind.UNKNOWN if getattr(spec, "tp_replicated", False) else GroupKind.STATE), 0
        case _:
            kind, window = GroupKind.UNKNOWN, 0
    return CacheGroup(kind, int(spec.block_size), window)
