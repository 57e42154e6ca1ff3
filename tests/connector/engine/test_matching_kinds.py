"""What a leg may take of models with windows, states and shards, against an oracle that counts token by token."""

from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from connector.engine.cache_shape import CacheGroup, CacheShape, GroupKind
from connector.engine.matching import Match, PromptFacts, match_decode, match_prefill
from connector.protocol import Decision, PolicyValues, Role
from tests.connector.engine.builders import BLOCK_SIZE, an_offer, chain_of

DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=400)
FULL = CacheGroup(GroupKind.FULL, BLOCK_SIZE)
STATE = CacheGroup(GroupKind.STATE, BLOCK_SIZE)
SHARDED = CacheGroup(GroupKind.SHARDED, BLOCK_SIZE)
ALWAYS = PolicyValues(kv_recompute_threshold=1)


def window(num_tokens: int) -> CacheGroup:
    return CacheGroup(GroupKind.WINDOW, BLOCK_SIZE, num_tokens)


def facts(tokens: list[int], num_local_tokens: int = 0) -> PromptFacts:
    chain = chain_of(tokens)
    return PromptFacts(
        num_tokens=len(tokens),
        num_local_tokens=num_local_tokens,
        block_size=BLOCK_SIZE,
        digests=chain.digests,
        tail_of=lambda num_tokens: chain.tail(tokens, num_tokens),
    )


def held_blocks(group: CacheGroup, num_tokens: int) -> list[int]:
    """Blocks, by their place, that vLLM keeps once these tokens are computed: what the next one attends to."""
    if group.kind is not GroupKind.WINDOW:
        return list(range(-(-num_tokens // BLOCK_SIZE)))
    first = max(0, num_tokens - group.window_tokens + 1) // BLOCK_SIZE
    return [block for block in range(-(-num_tokens // BLOCK_SIZE)) if block >= first]


def matched(shape: CacheShape, role: Role, held: list[int], prompt: list[int], local: int = 0) -> Match:
    source = Role.DECODE if role is Role.PREFILL else Role.PREFILL
    blocks = tuple(tuple(block + 100 for block in held_blocks(group, len(held))) for group in shape.groups)
    offer = structs.replace(an_offer(held, role=source), block_ids=blocks)
    if role is Role.PREFILL:
        return match_prefill(offer, facts(prompt, local), ALWAYS, shape)
    return match_decode(offer, facts(prompt, local), shape)


def is_exact(group: CacheGroup, num_held: int, num_taken: int) -> bool:
    """Whether every block that the reader will attend to is one that the source still has, as it was then."""
    if group.kind in (GroupKind.STATE, GroupKind.SHARDED):
        return num_taken == num_held
    return set(held_blocks(group, num_taken)) <= set(held_blocks(group, num_held))


def most_tokens(shape: CacheShape, held: list[int], prompt: list[int]) -> int:
    """The longest beginning of both that is verified by digests, leaves the last token, and is exact in each group."""
    common = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(held, prompt, strict=False))))
    verified = common if common == len(held) else common // BLOCK_SIZE * BLOCK_SIZE
    is_spared = any(group.kind in (GroupKind.STATE, GroupKind.WINDOW) for group in shape.groups)
    longest = min(verified, len(prompt) - is_spared)
    exact = (taken for taken in range(longest, 0, -1) if all(is_exact(g, len(held), taken) for g in shape.groups))
    return next(exact, 0)


SHAPES = st.one_of(
    st.builds(lambda size: CacheShape((FULL, window(size))), st.integers(2, 14)),
    st.builds(lambda one, other: CacheShape((window(one), FULL, window(other))), st.integers(2, 9), st.integers(2, 20)),
    st.sampled_from([CacheShape((FULL, STATE)), CacheShape((SHARDED,)), CacheShape((FULL, window(5), STATE))]),
)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=24)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """What is held, and a prompt that shares a random beginning of it: equal, appended, shorter or edited."""
    held = draw(TOKENS)
    shared = held[: draw(st.integers(0, len(held)))]
    return held, (shared + draw(st.lists(st.integers(0, 1), max_size=9))) or [0]


@DETERMINISTIC
@given(SHAPES, histories(), st.sampled_from(list(Role)), st.integers(0, 6))
def test_a_leg_takes_the_most_that_is_exact_and_not_a_token_more(
    shape: CacheShape, both: tuple[list[int], list[int]], role: Role, local_blocks: int
) -> None:
    held, prompt = both
    local = min(local_blocks, (len(prompt) - 1) // BLOCK_SIZE) * BLOCK_SIZE
    match = matched(shape, role, held, prompt, local)
    expected = most_tokens(shape, held, prompt)
    assert match.num_verified_tokens == expected
    assert match.num_pull_tokens == max(0, expected - local)
    if match.num_pull_tokens:
        assert match.num_blocks == -(-expected // BLOCK_SIZE)


@DETERMINISTIC
@given(SHAPES, histories(), st.sampled_from(list(Role)))
def test_the_reason_tells_whether_tokens_or_the_kind_of_model_stood_in_the_way(
    shape: CacheShape, both: tuple[list[int], list[int]], role: Role
) -> None:
    held, prompt = both
    match = matched(shape, role, held, prompt)
    starts_alike = held[:BLOCK_SIZE] == prompt[:BLOCK_SIZE] and len(held) >= BLOCK_SIZE <= len(prompt)
    is_common = starts_alike or prompt[: len(held)] == held
    if most_tokens(shape, held, prompt):
        assert match.decision in (Decision.PULLED, Decision.TRIMMED_PREFIX_DIVERGED)
    else:
        assert match.decision is (Decision.UNSUPPORTED if is_common else Decision.PREFIX_DIVERGED)


HISTORY = list(range(40))
WINDOWED = CacheShape((FULL, window(8)))


@pytest.mark.parametrize(
    ("held", "prompt", "decision", "num_tokens"),
    [
        pytest.param(HISTORY[:18], HISTORY[:30], Decision.PULLED, 18, id="appended, partial block too"),
        pytest.param(HISTORY[:19], HISTORY[:30], Decision.PULLED, 19, id="appended, where whole blocks are not exact"),
        pytest.param(HISTORY[:18], HISTORY[:18], Decision.PULLED, 17, id="equal but for the last token"),
        pytest.param(HISTORY[:19], HISTORY[:19], Decision.UNSUPPORTED, 0, id="equal, the window just left a block"),
        pytest.param(HISTORY[:18], [*HISTORY[:17], 99], Decision.PULLED, 16, id="last token edited"),
        pytest.param(HISTORY[:30], HISTORY[:18], Decision.UNSUPPORTED, 0, id="regenerated before the window"),
        pytest.param(HISTORY[:7], HISTORY[:5], Decision.PULLED, 4, id="regenerated within the window"),
        pytest.param(HISTORY[:30], [99, *HISTORY], Decision.PREFIX_DIVERGED, 0, id="nothing in common"),
    ],
)
def test_prefill_of_a_windowed_model(held: list[int], prompt: list[int], decision: Decision, num_tokens: int) -> None:
    match = matched(WINDOWED, Role.PREFILL, held, prompt)
    assert (match.decision, match.num_pull_tokens) == (decision, num_tokens)


@pytest.mark.parametrize("size", [11, 12, 13])
def test_decode_takes_a_windowed_prompt_that_prefill_left_one_token_short(size: int) -> None:
    match = matched(WINDOWED, Role.DECODE, HISTORY[: size - 1], HISTORY[:size])
    assert (match.decision, match.num_pull_tokens, match.is_whole_offer) == (Decision.PULLED, size - 1, True)


def test_the_threshold_counts_the_tokens_of_a_partial_block_too() -> None:
    def at(threshold: int) -> Decision:
        blocks = tuple(tuple(held_blocks(group, 18)) for group in WINDOWED.groups)
        offer = structs.replace(an_offer(HISTORY[:18]), block_ids=blocks)
        policy = PolicyValues(kv_recompute_threshold=threshold)
        return match_prefill(offer, facts(HISTORY[:30]), policy, WINDOWED).decision

    assert (at(18), at(19)) == (Decision.PULLED, Decision.BELOW_THRESHOLD)
