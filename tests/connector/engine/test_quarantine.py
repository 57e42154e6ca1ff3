"""Quarantined blocks return to the pool exactly once, and only after the last rank's READ has ended."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.engine.quarantine import BlockQuarantine

DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=300)


class FakeBlock:
    def __init__(self, block_id: int, *, is_null: bool = False) -> None:
        self.block_id = block_id
        self.is_null = is_null


class FakeCacheManager:
    """Counts references as vLLM's block pool does; ``allocated`` is what requests hold now."""

    def __init__(self, **allocated: list[FakeBlock]) -> None:
        self.allocated = allocated
        self.references: Counter[int] = Counter()
        self.num_frees = 0
        self.freed_order: list[int] = []
        self.block_pool = self

    def get_blocks(self, request_id: str) -> Any:
        return SimpleNamespace(blocks=(self.allocated.get(request_id, []),))

    def touch(self, blocks: list[FakeBlock]) -> None:
        self.references.update(block.block_id for block in blocks)

    def free_blocks(self, blocks: Any) -> None:
        self.num_frees += 1
        self.freed_order = [block.block_id for block in blocks]
        self.references.subtract(self.freed_order)


@pytest.fixture
def cache() -> FakeCacheManager:
    return FakeCacheManager(r=[FakeBlock(0, is_null=True), FakeBlock(1), FakeBlock(2)], s=[FakeBlock(3)])


@pytest.fixture
def quarantine(cache: FakeCacheManager) -> BlockQuarantine:
    made = BlockQuarantine()
    made.bind(cache)
    return made


def test_a_late_read_holds_the_requests_blocks_until_it_has_ended(
    quarantine: BlockQuarantine, cache: FakeCacheManager
) -> None:
    quarantine.note(["r"])
    quarantine.hold("r")
    assert (len(quarantine), quarantine.num_blocks, cache.references) == (1, 2, Counter({1: 1, 2: 1}))
    cache.allocated.clear()  # the request recomputes into other blocks meanwhile
    quarantine.end(["r"])
    assert (len(quarantine), quarantine.num_blocks, cache.references.total()) == (0, 0, 0)


def test_blocks_return_in_the_order_in_which_vllm_frees_them(
    quarantine: BlockQuarantine, cache: FakeCacheManager
) -> None:
    """The tail of a sequence first, so that its prefix stays cached longest."""
    quarantine.note(["r"])
    quarantine.hold("r")
    quarantine.end(["r"])
    assert cache.freed_order == [2, 1]


def test_the_blocks_wait_for_the_last_rank(quarantine: BlockQuarantine, cache: FakeCacheManager) -> None:
    quarantine.note(["r"])
    quarantine.note(["r", "r"])
    quarantine.hold("r")
    quarantine.end(["r", "r"])
    assert cache.num_frees == 0
    quarantine.end(["r"])
    assert cache.num_frees == 1


def test_a_rank_that_ends_before_the_hold_is_not_waited_for(
    quarantine: BlockQuarantine, cache: FakeCacheManager
) -> None:
    """Ranks report failures one by one, and vLLM acts on the last; one READ may end in between."""
    quarantine.note(["r", "r"])
    quarantine.end(["r"])
    quarantine.hold("r")
    assert cache.num_frees == 0
    quarantine.end(["r"])
    assert (cache.num_frees, cache.references.total()) == (1, 0)


def test_nothing_is_held_when_every_rank_ended_before(quarantine: BlockQuarantine, cache: FakeCacheManager) -> None:
    quarantine.note(["r"])
    quarantine.end(["r"])
    quarantine.hold("r")
    assert (len(quarantine), cache.references.total(), cache.num_frees) == (0, 0, 0)


def test_a_pull_that_failed_without_a_late_read_holds_nothing(
    quarantine: BlockQuarantine, cache: FakeCacheManager
) -> None:
    quarantine.hold("r")
    assert (len(quarantine), cache.references.total()) == (0, 0)


def test_an_end_that_nobody_waits_for_frees_nothing(quarantine: BlockQuarantine, cache: FakeCacheManager) -> None:
    quarantine.end(["r"])
    quarantine.note(["r"])
    quarantine.hold("r")
    assert len(quarantine) == 1
    quarantine.end(["r"])
    quarantine.end(["r"])
    assert cache.num_frees == 1


def test_requests_do_not_mix(quarantine: BlockQuarantine, cache: FakeCacheManager) -> None:
    quarantine.note(["r", "s"])
    quarantine.hold("r")
    quarantine.hold("s")
    quarantine.end(["s"])
    assert (quarantine.num_blocks, cache.references[3], cache.references[1]) == (2, 0, 1)


@DETERMINISTIC
@given(st.integers(1, 4), st.data())
def test_any_order_of_ranks_frees_exactly_once(num_ranks: int, data: st.DataObject) -> None:
    """Each rank notes, then ends; vLLM's hold comes after every rank has noted."""
    cache = FakeCacheManager(r=[FakeBlock(1), FakeBlock(2)])
    quarantine = BlockQuarantine()
    quarantine.bind(cache)
    num_noted = num_ended = 0
    is_held = False
    while num_ended < num_ranks or not is_held:
        moves = ["note"] * (num_noted < num_ranks) + ["end"] * (num_ended < num_noted)
        moves += ["hold"] * (num_noted == num_ranks and not is_held)
        move = data.draw(st.sampled_from(moves))
        if move == "note":
            num_noted += 1
            quarantine.note(["r"])
        elif move == "end":
            num_ended += 1
            quarantine.end(["r"])
        else:
            is_held = True
            quarantine.hold("r")
            assert (len(quarantine) == 1) == (num_ended < num_ranks)
        assert cache.references.total() == 2 * (is_held and len(quarantine))
    assert (len(quarantine), cache.references.total()) == (0, 0)
    assert cache.num_frees <= 1


# ---------------------------------------------------------------- blocks that can't be held


def an_output(**changes: Any) -> Any:
    return SimpleNamespace(**{"finished_recving": None, "failed_recving": set(), **changes})


def a_report(**changes: Any) -> Any:
    return SimpleNamespace(**{"quarantined": [], "ended": [], **changes})


def test_a_request_whose_blocks_can_not_be_held_finishes_only_with_its_reads() -> None:
    """vLLM frees what a finished receive held, so it is told of the end later."""
    quarantine = BlockQuarantine()
    quarantine.bind(SimpleNamespace(get_blocks=None))
    output = an_output(finished_recving={"r", "other"}, failed_recving={"r"})
    quarantine.follow(output, a_report(quarantined=["r", "r"]))
    assert (output.finished_recving, len(quarantine)) == ({"other"}, 1)
    output = an_output()
    quarantine.follow(output, a_report(ended=["r"]))
    assert (output.finished_recving, len(quarantine)) == (set(), 1)
    output = an_output(finished_recving={"third"})
    quarantine.follow(output, a_report(ended=["r"]))
    assert (output.finished_recving, len(quarantine)) == ({"r", "third"}, 0)
    output = an_output()
    quarantine.follow(output, a_report())
    assert output.finished_recving is None


def test_a_pull_that_failed_without_a_late_read_is_left_to_vllm() -> None:
    quarantine = BlockQuarantine()
    output = an_output(finished_recving={"r"}, failed_recving={"r"})
    quarantine.follow(output, a_report())
    assert (output.finished_recving, len(quarantine)) == ({"r"}, 0)
