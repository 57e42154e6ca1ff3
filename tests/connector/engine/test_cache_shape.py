"""Which tokens of a peer's KV are exact, for every kind of cache group, against what vLLM keeps token by token."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.engine.cache_shape import CacheGroup, CacheShape, GroupKind, cache_shape, plain_shape

DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=500)
BLOCK_SIZE = 4
FULL = CacheGroup(GroupKind.FULL, BLOCK_SIZE)
WINDOW = CacheGroup(GroupKind.WINDOW, BLOCK_SIZE, 8)
STATE = CacheGroup(GroupKind.STATE, BLOCK_SIZE)
SHARDED = CacheGroup(GroupKind.SHARDED, BLOCK_SIZE)
UNKNOWN = CacheGroup(GroupKind.UNKNOWN, BLOCK_SIZE)

# ---------------------------------------------------------------- the table of kinds


@pytest.mark.parametrize(
    ("groups", "is_plain", "can_be_reused", "can_hand_over"),
    [
        pytest.param((FULL,), True, True, True, id="full attention"),
        pytest.param((FULL, CacheGroup(GroupKind.FULL, 8)), True, True, True, id="two block sizes"),
        pytest.param((FULL, WINDOW), False, True, True, id="full and sliding window"),
        pytest.param((WINDOW,), False, True, True, id="sliding window only"),
        pytest.param((FULL, STATE), False, False, True, id="full and recurrent state"),
        pytest.param((SHARDED,), False, False, True, id="context parallel"),
        pytest.param((FULL, UNKNOWN), False, False, False, id="one group of an unknown kind"),
        pytest.param((), True, False, False, id="no cache"),
    ],
)
def test_what_each_direction_can_do_with_a_kind_of_model(
    groups: tuple[CacheGroup, ...], is_plain: bool, can_be_reused: bool, can_hand_over: bool
) -> None:
    shape = CacheShape(groups)
    assert (shape.is_plain, shape.can_be_reused, shape.can_hand_over) == (is_plain, can_be_reused, can_hand_over)


@pytest.mark.parametrize(
    ("groups", "is_recomputed"),
    [((FULL,), False), ((SHARDED,), False), ((FULL, WINDOW), True), ((FULL, STATE), True), ((UNKNOWN,), True)],
)
def test_the_last_prompt_token_is_left_out_where_computing_it_again_would_read_other_kv(
    groups: tuple[CacheGroup, ...], is_recomputed: bool
) -> None:
    assert CacheShape(groups).num_spared == is_recomputed


@pytest.mark.parametrize("group", [STATE, SHARDED])
def test_a_cache_that_is_exact_as_a_whole_is_taken_as_a_whole(group: CacheGroup) -> None:
    assert [taken for taken in range(12) if group.has(1, 10, taken)] == [10]
    assert group.cut([7, 8, 9], 10, 10) == [7, 8, 9]


def test_an_unknown_kind_is_never_exact() -> None:
    assert not any(UNKNOWN.has(3, 10, taken) for taken in range(12))


def test_the_same_blocks_are_needed_in_every_group() -> None:
    shape = CacheShape((FULL, WINDOW))
    assert shape.has([[1, 2, 3, 4], [5, 6]], 16, 16)
    assert not shape.has([[1, 2, 3, 4], [5, 6]], 16, 12)  # the window has left behind what token 12 attends to
    assert not shape.has([[1, 2, 3, 4]], 16, 16)  # another number of groups


def test_blocks_are_cut_by_the_block_size_of_their_own_group() -> None:
    shape = CacheShape((FULL, CacheGroup(GroupKind.FULL, 8), WINDOW))
    assert shape.cut([[1, 2, 3, 4, 5], [6, 7, 8], [9, 10, 11]], 17, 16) == [[1, 2, 3, 4], [6, 7], [9, 10]]


# ---------------------------------------------------------------- against vLLM's rule, token by token

WINDOWS = st.integers(1, 20)
LENGTHS = st.integers(1, 60)


def kept_tokens(window: int, num_tokens: int) -> set[int]:
    """What the next token, at position ``num_tokens``, attends to besides itself."""
    return set(range(max(0, num_tokens - window + 1), num_tokens))


def kept_blocks(window: int, num_tokens: int) -> list[int]:
    """Indices of the blocks that vLLM keeps for those tokens, oldest first."""
    kept = {token // BLOCK_SIZE for token in kept_tokens(window, num_tokens)}
    # A window of one token attends to nothing before; vLLM still holds the block that the next token goes to.
    is_open = num_tokens % BLOCK_SIZE != 0
    return sorted(kept | ({num_tokens // BLOCK_SIZE} if is_open else set()))


@DETERMINISTIC
@given(WINDOWS, LENGTHS, LENGTHS, st.integers(0, 3))
def test_a_window_is_exact_where_the_source_still_has_each_block_that_the_reader_allocates(
    window: int, num_held: int, num_taken: int, num_clipped: int
) -> None:
    group = CacheGroup(GroupKind.WINDOW, BLOCK_SIZE, window)
    held = kept_blocks(window, num_held)[num_clipped:]
    wanted = kept_blocks(window, num_taken)
    is_exact = num_taken <= num_held and set(wanted) <= set(held)
    if not wanted:
        return  # nothing of the window is transferred, so nothing of it can be wrong
    assert group.has(len(held), num_held, num_taken) is is_exact
    if is_exact:
        cut = group.cut(held, num_held, num_taken)
        assert cut[len(cut) - len(wanted) :] == wanted  # vLLM pairs both lists from their ends


@DETERMINISTIC
@given(WINDOWS, LENGTHS, st.integers(0, 2), st.integers(0, 2))
def test_an_offer_names_no_placeholder_and_ends_with_the_last_offered_token(
    window: int, num_held: int, num_ahead: int, num_placeholders: int
) -> None:
    group = CacheGroup(GroupKind.WINDOW, BLOCK_SIZE, window)
    num_computed = num_held + num_ahead
    last = -(-num_computed // BLOCK_SIZE)
    blocks = [block for block in range(last) if block >= group.first_kept_block(num_held)]
    listed = [0] * num_placeholders + [block + 100 for block in blocks]
    expected = [block + 100 for block in blocks if block < -(-num_held // BLOCK_SIZE)]
    assert group.exported(listed, num_computed, num_held) == expected


@DETERMINISTIC
@given(LENGTHS, LENGTHS)
def test_full_attention_has_every_prefix_and_cuts_to_its_blocks(num_held: int, num_taken: int) -> None:
    blocks = list(range(-(-num_held // BLOCK_SIZE)))
    assert FULL.has(len(blocks), num_held, num_taken) is (num_taken <= num_held)
    if num_taken <= num_held:
        assert FULL.cut(blocks, num_held, num_taken) == blocks[: -(-num_taken // BLOCK_SIZE)]


# ---------------------------------------------------------------- from vLLM's classes, by name


def a_spec(name: str, **fields: Any) -> Any:
    return type(name, (), {"block_size": BLOCK_SIZE, **fields})()


def kind_of(
    *specs: Any, dcp: int = 1, pcp: int = 1, own_scales: bool = False, fails_by_request: bool = True, **group: Any
) -> list[GroupKind]:
    parallel = SimpleNamespace(decode_context_parallel_size=dcp, prefill_context_parallel_size=pcp)
    config = SimpleNamespace(parallel_config=parallel, cache_config=SimpleNamespace(calculate_kv_scales=own_scales))
    groups = [SimpleNamespace(kv_cache_spec=spec, **group) for spec in specs]
    shape = cache_shape(SimpleNamespace(kv_cache_groups=groups), config, fails_by_request=fails_by_request)
    return [found.kind for found in shape.groups]


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (a_spec("FullAttentionSpec"), GroupKind.FULL),
        (a_spec("FullAttentionSpec", sliding_window=64), GroupKind.FULL),  # the hybrid cache manager is off
        (a_spec("FullAttentionSpec", non_causal=True), GroupKind.UNKNOWN),
        (a_spec("FullAttentionSpec", tokens_per_state=4), GroupKind.UNKNOWN),
        (a_spec("MLAAttentionSpec"), GroupKind.FULL),
        (a_spec("MLAAttentionSpec", tokens_per_state=4), GroupKind.UNKNOWN),
        (a_spec("SlidingWindowSpec", sliding_window=64), GroupKind.WINDOW),
        (a_spec("SlidingWindowSpec", sliding_window=64, extra_retained_tokens=2), GroupKind.UNKNOWN),
        (a_spec("MambaSpec"), GroupKind.STATE),
        (a_spec("MambaSpec", tp_replicated=True), GroupKind.UNKNOWN),
        (a_spec("SlidingWindowMLASpec", sliding_window=64), GroupKind.UNKNOWN),
        (a_spec("ChunkedLocalAttentionSpec", attention_chunk_size=64), GroupKind.UNKNOWN),
        (a_spec("SinkFullAttentionSpec"), GroupKind.UNKNOWN),
        (a_spec("RSWASpec", rswa_window=64), GroupKind.UNKNOWN),
        (a_spec("CrossAttentionSpec"), GroupKind.UNKNOWN),
        (a_spec("EncoderOnlyAttentionSpec"), GroupKind.UNKNOWN),
        (a_spec("CircularBufferSpec"), GroupKind.UNKNOWN),
        (a_spec("HiddenStateCacheSpec"), GroupKind.UNKNOWN),
        (a_spec("SpecOfALaterRelease"), GroupKind.UNKNOWN),
    ],
)
def test_each_class_of_vllm_has_its_kind_and_an_unknown_one_none(spec: Any, kind: GroupKind) -> None:
    assert kind_of(spec) == [kind]


def test_layers_of_one_type_count_as_that_type() -> None:
    windows = {"a": a_spec("SlidingWindowSpec", sliding_window=64), "b": a_spec("SlidingWindowSpec", sliding_window=64)}
    mixed = {**windows, "c": a_spec("FullAttentionSpec")}
    other = {**windows, "c": a_spec("SlidingWindowSpec", sliding_window=32)}
    wrapped = [a_spec("UniformTypeKVCacheSpecs", kv_cache_specs=layers) for layers in (windows, mixed, other)]
    assert kind_of(*wrapped) == [GroupKind.WINDOW, GroupKind.UNKNOWN, GroupKind.UNKNOWN]


@pytest.mark.parametrize(("dcp", "pcp"), [(2, 1), (1, 2)])
def test_context_parallel_engines_hand_over_full_attention_as_a_whole(dcp: int, pcp: int) -> None:
    specs = [a_spec("FullAttentionSpec"), a_spec("SlidingWindowSpec", sliding_window=64), a_spec("MambaSpec")]
    assert kind_of(*specs, dcp=dcp, pcp=pcp) == [GroupKind.SHARDED, GroupKind.UNKNOWN, GroupKind.UNKNOWN]


@pytest.mark.parametrize("group", [{"enable_kv_transfer": False}, {"host_resident": True}])
def test_a_group_that_is_not_transferred_is_unknown(group: dict[str, bool]) -> None:
    assert kind_of(a_spec("FullAttentionSpec"), **group) == [GroupKind.UNKNOWN]


def test_several_groups_are_unknown_where_vllm_hears_of_a_failed_pull_by_its_blocks() -> None:
    full = a_spec("FullAttentionSpec")
    assert kind_of(full, fails_by_request=False) == [GroupKind.FULL]
    assert kind_of(full, full, fails_by_request=False) == [GroupKind.UNKNOWN] * 2


def test_kv_quantised_by_scales_of_the_engines_own_is_no_other_engines() -> None:
    assert kind_of(a_spec("FullAttentionSpec"), own_scales=True) == [GroupKind.UNKNOWN]


def test_a_plain_shape_is_one_group_with_full_attention() -> None:
    assert plain_shape(BLOCK_SIZE) == CacheShape((FULL,))
