"""What is generated: reproducible, of the promised lengths, and with every kind of change in it."""

from collections import Counter

import msgspec
import pytest

from tests.load.correctness.conversations import (
    MARKERS,
    MAX_TOKENS,
    decode_prompt,
    next_prompt,
    opening,
    tokens_of,
    with_reply,
)
from tests.load.correctness.expectations import num_common_tokens
from tests.load.correctness.histories import BLOCK_SIZE, CHANGES, DECODE_PROMPTS, LEASE_FATES, Turn, generate

HELD = with_reply(opening(Turn(seed=1, where=60)), (400, 401, 402, 403))


def test_same_seed_gives_the_same_history_and_survives_json() -> None:
    history = generate(11)
    assert generate(11) == history
    assert msgspec.json.decode(msgspec.json.encode(history), type=type(history)) == history


def test_a_few_hundred_histories_hold_every_kind() -> None:
    turns = [turn for seed in range(300) for turn in generate(seed).turns[1:]]
    assert set(Counter(turn.change for turn in turns)) == set(CHANGES)
    assert {turn.lease_fate for turn in turns} == set(LEASE_FATES)
    assert {turn.decode_prompt for turn in turns} == set(DECODE_PROMPTS)
    assert {turn.adapter for turn in turns} == {0, 1, 2}
    assert {turn.num_branches for turn in turns} == {1, 2, 3}
    assert {turn.is_streamed for turn in turns} == {turn.caches_prefill for turn in turns} == {False, True}
    assert max(turn.tenant for turn in turns) > 0


def test_openings_have_100_to_700_tokens() -> None:
    lengths = [len(tokens_of(opening(generate(seed).turns[0]))) for seed in range(300)]
    assert 100 <= min(lengths) < 200
    assert 600 < max(lengths) <= MAX_TOKENS


@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_prompts_are_aligned_to_block_boundaries(change: str, offset: int) -> None:
    turn = Turn(change=change, seed=3, align="prompt", align_offset=offset)
    assert len(tokens_of(next_prompt(HELD, turn))) % BLOCK_SIZE == offset % BLOCK_SIZE


@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_leases_are_aligned_to_block_boundaries(offset: int) -> None:
    turn = Turn(seed=3, align="lease", align_offset=offset, num_reply_tokens=8)
    assert (len(tokens_of(next_prompt(HELD, turn))) + 7) % BLOCK_SIZE == offset % BLOCK_SIZE


@pytest.mark.parametrize("change", ["cut", "regenerate", "resend"])
@pytest.mark.parametrize("align", ["none", "prompt"])
def test_shrinking_changes_give_a_prefix(change: str, align: str) -> None:
    held = tokens_of(HELD)
    prompt = tokens_of(next_prompt(HELD, Turn(change=change, seed=3, align=align, align_offset=1)))
    assert prompt == held[: len(prompt)]


def test_edit_changes_two_tokens_where_it_says() -> None:
    held = tokens_of(HELD)
    prompt = tokens_of(next_prompt(HELD, Turn(change="edit", where=50, seed=3)))
    assert num_common_tokens(held, prompt) == len(held) // 2
    assert prompt[len(held) // 2 + 2 : len(held)] == held[len(held) // 2 + 2 :]


def test_stripping_takes_the_reasoning_only() -> None:
    prompt = tokens_of(next_prompt(HELD, Turn(change="strip_reasoning", seed=3)))
    assert MARKERS["reasoning"] in tokens_of(HELD)
    assert MARKERS["reasoning"] not in prompt
    assert [t for t in prompt if t == MARKERS["tool"]] == [t for t in tokens_of(HELD) if t == MARKERS["tool"]]


def test_reordered_tools_are_the_same_tokens() -> None:
    held = tokens_of(HELD)
    prompt = tokens_of(next_prompt(HELD, Turn(change="reorder_tools", seed=3)))
    assert prompt[: len(held)] != held
    assert sorted(prompt[: len(held)]) == sorted(held)


def test_date_changes_near_the_start_only() -> None:
    held = tokens_of(HELD)
    prompt = tokens_of(next_prompt(HELD, Turn(change="date", seed=3)))
    assert 0 < num_common_tokens(held, prompt) < BLOCK_SIZE
    assert prompt[BLOCK_SIZE : len(held)] == held[BLOCK_SIZE:]


def test_branches_of_one_turn_differ_in_what_they_append() -> None:
    turn = Turn(change="append", seed=3, num_branches=2)
    first, second = (tokens_of(next_prompt(HELD, turn, number)) for number in (0, 1))
    assert first != second
    assert num_common_tokens(first, second) >= len(tokens_of(HELD))


def test_decode_prompts_differ_as_they_say() -> None:
    prompt = tokens_of(HELD)
    longer, shorter, edited, same = (
        tokens_of(decode_prompt(HELD, Turn(decode_prompt=kind, size=20, where=30)))
        for kind in ("longer", "shorter", "edited", "same")
    )
    assert longer[:-1] == prompt == same
    assert shorter == prompt[:-21]
    assert len(edited) == len(prompt)
    assert num_common_tokens(edited, prompt) == len(prompt) * 30 // 100
