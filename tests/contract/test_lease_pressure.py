"""Leases give way to requests: on vLLM's own scheduler and block pool, within three steps, and no request is preempted.

A decode engine of few blocks holds leases of finished turns; then something needs their blocks.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.protocol import Role
from tests.connector.engine.builders import BLOCK_SIZE
from tests.contract.pair_bench import Engine, Pair, reply_of
from tests.contract.worker_bench import ManualClock

NUM_BLOCKS = 41
"""Forty and vLLM's null block."""
MAX_STEPS = 3
TURN = 4 * BLOCK_SIZE
"""Tokens of one turn; with its reply it holds five blocks."""


@pytest.fixture
def pair(pair_folder: Path, clock: ManualClock) -> Iterator[Pair]:
    made = Pair(pair_folder, clock, num_blocks=NUM_BLOCKS, pinned_kv_limit=1.0)
    yield made
    made.close()


def prompt_of(seed: int, num_tokens: int = TURN) -> list[int]:
    return [(seed * 31 + position * 7) % 90 + 1 for position in range(num_tokens)]


def hold(pair: Pair, num_leases: int, **envelope: object) -> None:
    """Finished turns of as many sessions, each with its lease."""
    for number in range(num_leases):
        name = f"held-{number}"
        pair.decode.run(pair.start_decode(name, prompt_of(number), None, 2, **envelope))
    pair.decode.settle()
    assert {f"held-{number}" for number in range(num_leases)} <= live(pair.decode)


def steps_until_it_runs(engine: Engine, request_id: str) -> int:
    """Until its first token; a step more than until it is scheduled."""
    for number in range(1, 20):
        engine.step()
        if engine.answers[request_id]:
            return number
    raise AssertionError(f"{request_id} still waits: {engine.status(request_id)}")


def run_counting_preemptions(engine: Engine, request_ids: list[str]) -> int:
    """Until all have finished."""
    seen = 0
    for _ in range(400):
        if all(request_id in engine.finished for request_id in request_ids):
            return seen
        engine.step()
        seen = max(seen, sum(request.num_preemptions for request in engine.scheduler.requests.values()))
    raise AssertionError(f"not finished: {[engine.status(request_id) for request_id in request_ids]}")


def live(engine: Engine) -> set[str]:
    return {lease.turn_id for lease in engine.core.control.table if lease.ending is None}


def test_a_big_prompt_does_not_wait_for_a_ttl(pair: Pair) -> None:
    hold(pair, 7)
    assert pair.decode.num_free_blocks == 5
    big = prompt_of(99, 20 * BLOCK_SIZE)
    request_id = pair.start_decode("big", big, None, 2)
    assert steps_until_it_runs(pair.decode, request_id) <= MAX_STEPS
    pair.decode.run(request_id)
    assert pair.decode.answers[request_id] == reply_of(big, 2)
    assert set(pair.decode.endings()) == {("released", "pressure")}


def test_no_lease_goes_that_is_not_needed(pair: Pair) -> None:
    """Twenty blocks and one to grow into, of which five are free: four leases of five blocks."""
    hold(pair, 7)
    request_id = pair.start_decode("big", prompt_of(99, 20 * BLOCK_SIZE), None, 1)
    steps_until_it_runs(pair.decode, request_id)
    pair.decode.settle()
    assert len(pair.decode.endings()) == 4
    assert len(live(pair.decode)) == 3 + 1


def test_a_prompt_that_is_cached_in_a_lease_needs_only_the_rest(pair: Pair) -> None:
    """The next turn of a held session: most of its blocks are the lease's own, so few others have to go."""
    first = prompt_of(40, 15 * BLOCK_SIZE)
    pair.decode.run(pair.start_decode("long", first, None, 2))
    hold(pair, 4)
    assert pair.decode.num_free_blocks == 4
    request_id = pair.start_decode("next", [*first, *reply_of(first, 2), *prompt_of(5, 6)], None, 1)
    assert steps_until_it_runs(pair.decode, request_id) <= MAX_STEPS
    assert len(pair.decode.endings()) <= 1, "of eighteen blocks three were missing, and four were free"
    assert "long" in live(pair.decode)


def test_growing_replies_are_not_preempted_for_the_sake_of_leases(pair: Pair) -> None:
    hold(pair, 6)
    running = [pair.start_decode(f"grow-{number}", prompt_of(50 + number), None, 40) for number in range(2)]
    assert run_counting_preemptions(pair.decode, running) == 0
    for number, request_id in enumerate(running):
        assert pair.decode.answers[request_id] == reply_of(prompt_of(50 + number), 40)


def test_many_replies_that_grow_in_the_same_step_are_not_preempted(pair: Pair) -> None:
    """Parallel sub-agents of equal prompts cross a block boundary together, more of them than the low water."""
    hold(pair, 3)
    running = [pair.start_decode(f"sub-{number}", prompt_of(60 + number, 11), None, 12) for number in range(5)]
    assert run_counting_preemptions(pair.decode, running) == 0


def test_without_leases_vllm_preempts_as_ever(pair: Pair) -> None:
    """The tests above would not notice if nothing was ever scarce."""
    running = [pair.start_decode(f"grow-{number}", prompt_of(50 + number, 72), None, 60) for number in range(2)]
    assert run_counting_preemptions(pair.decode, running) > 0


def test_a_lower_limit_frees_within_three_steps(pair: Pair) -> None:
    hold(pair, 7)
    pair.decode.set_policy(kv_recompute_threshold=1, pinned_kv_limit=0.25)
    for _ in range(MAX_STEPS):
        pair.decode.step()
    assert pair.decode.core.control.table.num_blocks <= 10
    assert pair.decode.num_free_blocks == 40 - pair.decode.core.control.table.num_blocks
    assert len(pair.decode.core.control.table) == 2


@pytest.mark.parametrize("num_leases", [1, 4, 7])
def test_the_leased_blocks_are_those_that_are_not_free(pair: Pair, num_leases: int) -> None:
    hold(pair, num_leases)
    assert 40 - pair.decode.num_free_blocks == pair.decode.core.control.table.num_blocks == 5 * num_leases


def test_overlapping_leases_count_shared_blocks_once(pair: Pair) -> None:
    """Branches of one conversation share its blocks, each has its own end."""
    trunk = prompt_of(1, 20)
    for number in range(3):
        branch = [*trunk, *prompt_of(10 + number, 8)]
        pair.decode.run(pair.start_decode(f"branch-{number}", branch, None, 2, session_id="s"))
    pair.decode.settle()
    table = pair.decode.core.control.table
    assert len(live(pair.decode)) == 3
    assert 40 - pair.decode.num_free_blocks == table.num_blocks == 5 + 3 * 3


def test_an_extended_prompt_supersedes_its_prefix_and_frees_only_what_it_does_not_share(pair: Pair) -> None:
    first = prompt_of(1)
    pair.decode.run(pair.start_decode("one", first, None, 2, session_id="s"))
    second = [*first, *reply_of(first, 2), *prompt_of(2, 9)]
    pair.decode.run(pair.start_decode("two", second, None, 2, session_id="s"))
    pair.decode.settle()
    assert live(pair.decode) == {"two"}
    assert pair.decode.endings() == [("superseded", "superseded")]
    assert 40 - pair.decode.num_free_blocks == pair.decode.core.control.table.num_blocks


def test_a_retry_whose_reply_differs_in_the_last_block_is_kept_beside(pair: Pair) -> None:
    """Their whole blocks are equal, their tokens are not: neither is a prefix of the other."""
    first = prompt_of(1)
    for turn, last in (("one", 5), ("two", 6)):
        pair.decode.run(pair.start_decode(turn, [*first, last, 9], None, 1, session_id="s"))
    pair.decode.settle()
    assert live(pair.decode) == {"one", "two"}


def test_nothing_is_left_of_leases_that_gave_way(pair: Pair) -> None:
    hold(pair, 7)
    request_id = pair.start_decode("big", prompt_of(99, 30 * BLOCK_SIZE), None, 2)
    pair.decode.run(request_id)
    pair.expire_all()
    assert pair.leftovers() == []
    assert pair.decode.role is Role.DECODE
