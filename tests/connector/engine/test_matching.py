"""What a leg may take from an offer: the table of reasons in their order, and never more than what is common."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.engine.cache_shape import plain_shape
from connector.engine.matching import Match, PromptFacts, match_decode, match_prefill
from connector.protocol import Decision, PolicyValues, Role
from tests.connector.engine.builders import BLOCK_SIZE, an_offer, chain_of, naive_common_blocks

DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=300)
NARROW_TOKENS = st.lists(st.integers(0, 1), max_size=24)


def facts(tokens: list[int], num_local_tokens: int = 0, block_size: int = BLOCK_SIZE) -> PromptFacts:
    chain = chain_of(tokens, block_size)
    return PromptFacts(
        num_tokens=len(tokens),
        num_local_tokens=num_local_tokens,
        block_size=block_size,
        digests=chain.digests,
        tail_of=lambda num_tokens: chain.tail(tokens, num_tokens),
    )


def prefill(
    held: list[int], prompt: list[int], *, local: int = 0, threshold: int = 1, block_size: int = BLOCK_SIZE
) -> Match:
    policy = PolicyValues(kv_recompute_threshold=threshold)
    return match_prefill(an_offer(held, block_size), facts(prompt, local, block_size), policy, plain_shape(block_size))


def decode(held: list[int], prompt: list[int], *, local: int = 0) -> Match:
    offer = an_offer(held, role=Role.PREFILL)
    return match_decode(offer, facts(prompt, local), plain_shape(BLOCK_SIZE))


HISTORY = list(range(100))


# ---------------------------------------------------------------- D→P


@pytest.mark.parametrize(
    ("prompt", "decision", "num_blocks"),
    [
        pytest.param([*HISTORY, 7, 7, 7], Decision.PULLED, 25, id="appended"),
        pytest.param(HISTORY, Decision.PULLED, 25, id="equal"),
        pytest.param(HISTORY[:98], Decision.TRIMMED_PREFIX_DIVERGED, 24, id="two tokens shorter"),
        pytest.param(HISTORY[:50], Decision.TRIMMED_PREFIX_DIVERGED, 12, id="regenerated from the middle"),
        pytest.param([*HISTORY[:49], 9, *HISTORY[50:]], Decision.TRIMMED_PREFIX_DIVERGED, 12, id="edited"),
        pytest.param([*HISTORY[:4], 9], Decision.TRIMMED_PREFIX_DIVERGED, 1, id="one block in common"),
        pytest.param([9, *HISTORY], Decision.PREFIX_DIVERGED, 0, id="one token in front"),
        pytest.param(HISTORY[:3], Decision.PREFIX_DIVERGED, 0, id="shorter than a block"),
        pytest.param([*HISTORY[:3], 9], Decision.PREFIX_DIVERGED, 0, id="first block edited at its end"),
    ],
)
def test_prefill_pulls_exactly_the_common_whole_blocks(prompt: list[int], decision: Decision, num_blocks: int) -> None:
    match = prefill(HISTORY, prompt)
    assert (match.decision, match.num_blocks) == (decision, num_blocks)
    assert match.num_verified_tokens == match.num_pull_tokens == num_blocks * BLOCK_SIZE


@pytest.mark.parametrize("extra_held", [-1, 0, 1])
@pytest.mark.parametrize("extra_prompt", [-1, 0, 1])
def test_prefill_at_a_block_boundary(extra_held: int, extra_prompt: int) -> None:
    held, prompt = list(range(8 + extra_held)), list(range(8 + extra_prompt))
    match = prefill(held, prompt)
    common = min(len(held), len(prompt)) // BLOCK_SIZE
    assert (match.num_blocks, match.num_pull_tokens) == (common, common * BLOCK_SIZE)


@pytest.mark.parametrize(
    ("threshold", "num_missing", "is_pulled"),
    [
        (0, 1, True),
        (1, 1, True),
        (63, 63, True),
        (63, 62, False),
        (64, 63, False),
        (64, 64, True),
        (64, 65, True),
        (65, 64, False),
        (65, 65, True),
        (65, 66, True),
    ],
)
def test_the_threshold_counts_the_verified_tokens_that_prefill_lacks(
    threshold: int, num_missing: int, is_pulled: bool
) -> None:
    tokens = list(range(200))
    match = prefill(tokens, tokens, local=200 - num_missing, threshold=threshold, block_size=1)
    assert match.num_verified_tokens == 200
    assert match.decision is (Decision.PULLED if is_pulled else Decision.BELOW_THRESHOLD)
    assert match.num_pull_tokens == (num_missing if is_pulled else 0)
    assert (match.num_blocks > 0) is is_pulled


@pytest.mark.parametrize("threshold", [0, 1, 64, 10**9])
@pytest.mark.parametrize("local", [12, 16])
def test_what_prefill_already_holds_is_a_local_hit_whatever_the_threshold(threshold: int, local: int) -> None:
    match = prefill(list(range(12)), list(range(16)), local=local, threshold=threshold)
    assert match == Match(decision=Decision.LOCAL_PREFIX_HIT, num_verified_tokens=12)


@pytest.mark.parametrize("threshold", [0, 10**9])
def test_a_diverged_prefix_is_told_before_local_hits_and_threshold(threshold: int) -> None:
    match = prefill([9, *range(15)], list(range(16)), local=16, threshold=threshold)
    assert match == Match(decision=Decision.PREFIX_DIVERGED)


def test_a_local_hit_in_front_leaves_only_the_rest_to_pull() -> None:
    match = prefill(list(range(16)), list(range(20)), local=8)
    assert (match.num_pull_tokens, match.num_blocks, match.num_verified_tokens) == (8, 4, 16)


# ---------------------------------------------------------------- P→D


def test_decode_takes_the_whole_prompt_with_its_partial_block() -> None:
    match = decode(HISTORY[:10], HISTORY[:10])
    assert match == Match(
        decision=Decision.PULLED, num_verified_tokens=10, num_pull_tokens=10, num_blocks=3, is_whole_offer=True
    )


def test_decode_ignores_the_threshold() -> None:
    assert decode([1], [1]).num_pull_tokens == 1


@pytest.mark.parametrize("size", [7, 8, 9])
def test_decode_of_an_equal_prompt_around_a_block_boundary(size: int) -> None:
    match = decode(HISTORY[:size], HISTORY[:size])
    assert (match.num_pull_tokens, match.num_blocks) == (size, -(-size // BLOCK_SIZE))


@pytest.mark.parametrize(
    ("held", "prompt", "num_blocks"),
    [
        pytest.param(HISTORY[:8], HISTORY[:9], 2, id="prompt one token over a boundary"),
        pytest.param(HISTORY[:9], HISTORY[:8], 2, id="offer one token over a boundary"),
        pytest.param(HISTORY[:10], [*HISTORY[:9], 99], 2, id="partial block edited"),
        pytest.param(HISTORY[:10], HISTORY[:11], 2, id="one token more in the partial block"),
        pytest.param(HISTORY[:12], [*HISTORY[:5], 99, *HISTORY[6:12]], 1, id="second block edited"),
    ],
)
def test_decode_trims_to_whole_blocks_when_prompts_differ(held: list[int], prompt: list[int], num_blocks: int) -> None:
    match = decode(held, prompt)
    assert match == Match(
        decision=Decision.TRIMMED_PREFIX_DIVERGED,
        num_verified_tokens=num_blocks * BLOCK_SIZE,
        num_pull_tokens=num_blocks * BLOCK_SIZE,
        num_blocks=num_blocks,
    )


def test_decode_without_a_common_block_recomputes() -> None:
    assert decode([9, 9, 9, 9, 9], HISTORY[:5]) == Match(decision=Decision.PREFIX_DIVERGED)


@pytest.mark.parametrize("local", [8, 12])
def test_decode_pulls_nothing_that_it_holds(local: int) -> None:
    match = decode(HISTORY[:9], [*HISTORY[:8], 99, 99, 99, 99, 99], local=local)
    assert (match.decision, match.num_pull_tokens) == (Decision.LOCAL_PREFIX_HIT, 0)


# ---------------------------------------------------------------- properties


@DETERMINISTIC
@given(NARROW_TOKENS, NARROW_TOKENS, st.integers(0, 6), st.integers(0, 12))
def test_prefill_never_takes_more_than_the_true_common_prefix(
    held: list[int], prompt: list[int], local_blocks: int, threshold: int
) -> None:
    local = min(local_blocks, len(prompt) // BLOCK_SIZE) * BLOCK_SIZE
    match = prefill(held, prompt, local=local, threshold=threshold)
    common = naive_common_blocks(held, prompt, BLOCK_SIZE) * BLOCK_SIZE
    assert match.num_verified_tokens == common
    assert match.num_pull_tokens in (0, common - local)
    assert local + match.num_pull_tokens <= len(prompt)
    assert match.num_blocks * BLOCK_SIZE in (0, common)
    assert (match.num_pull_tokens > 0) == (common - local >= max(1, threshold))


@DETERMINISTIC
@given(NARROW_TOKENS, NARROW_TOKENS.filter(bool), st.integers(0, 6))
def test_decode_never_takes_more_than_the_true_common_prefix(
    held: list[int], prompt: list[int], local_blocks: int
) -> None:
    local = min(local_blocks, (len(prompt) - 1) // BLOCK_SIZE) * BLOCK_SIZE
    match = decode(held, prompt, local=local)
    common = naive_common_blocks(held, prompt, BLOCK_SIZE) * BLOCK_SIZE
    may_take = len(prompt) if held == prompt else common
    assert match.num_verified_tokens <= may_take
    assert match.num_pull_tokens == max(0, may_take - local)
    assert match.is_whole_offer == (held == prompt and match.num_pull_tokens > 0)
    if match.num_pull_tokens:
        assert match.num_blocks == -(-may_take // BLOCK_SIZE)
