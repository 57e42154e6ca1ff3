"""Granting leases and making room for others: within the limit, and with no eviction more than needed."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.engine.room import LOW_WATER_BLOCKS
from connector.protocol import (
    LeaseKind,
    LeaseOffer,
    LeaseState,
)
from tests.connector.engine.builders import a_lease
from tests.contract.lease_bench import NUM_GPU_BLOCKS, Bench

DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=80)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---------------------------------------------------------------- granting


def test_a_grant_is_kept_by_the_workers_and_offered(bench: Bench) -> None:
    bench.grant("a", [1, 2])
    assert bench.control.has_orders
    assert bench.orders().kept_requests == ["req-a"]
    (offered,) = bench.reporter.sent
    assert isinstance(offered, LeaseOffer)
    assert offered.lease.lease_id == "lease-a"
    assert not bench.control.has_orders


def test_a_handoff_is_freed_by_its_read_and_not_offered(bench: Bench) -> None:
    bench.grant("a", [1], kind=LeaseKind.HANDOFF)
    assert (bench.orders().kept_requests, bench.reporter.sent) == ([], [])
    bench.control.ended("req-a")
    assert (len(bench.control.table), bench.ends()) == (0, [])


def test_orders_are_given_once(bench: Bench) -> None:
    lease = bench.grant("a", [1])
    bench.control.release(lease, LeaseState.RELEASED, "command")
    bench.orders()
    again = bench.orders()
    assert (again.kept_requests, again.releases, again.deadlines) == ([], [], {})


def test_the_next_turn_supersedes_its_sessions_lease(bench: Bench) -> None:
    bench.grant("old", [1, 2], session_id="s")
    bench.grant("new", [1, 2, 3], session_id="s")
    assert bench.released() == ["old"]
    assert bench.ends() == [("old", LeaseState.SUPERSEDED, "superseded")]


def test_a_branch_of_the_session_is_kept_beside(bench: Bench) -> None:
    bench.grant("old", [1, 2], session_id="s", tokens=range(8))
    bench.grant("branch", [1, 3], session_id="s", tokens=[*range(4), 9, 9, 9, 9])
    assert bench.released() == []


# ---------------------------------------------------------------- the limit


def test_the_limit_evicts_the_oldest_and_tells_why(bench: Bench) -> None:
    bench.grant("a", [1, 2, 3, 4], age_seconds=9)
    bench.grant("b", [5, 6, 7, 8], age_seconds=5)
    bench.grant("c", [9, 10, 11, 12])
    assert bench.released() == ["a"]
    assert bench.ends() == [("a", LeaseState.RELEASED, "pinned_kv_limit")]


@pytest.mark.parametrize("limit", [0.0, 0.1])
def test_a_lease_beyond_the_whole_limit_does_not_stay(limit: float) -> None:
    bench = Bench(pinned_kv_limit=limit)
    bench.grant("big", [1, 2, 3])
    assert bench.released() == ["big"]
    assert bench.ends() == [("big", LeaseState.RELEASED, "pinned_kv_limit")]


def test_a_lease_too_big_to_stay_drives_no_other_out(bench: Bench) -> None:
    bench.grant("prefix", [1, 2], session_id="s")
    bench.grant("other", [9])
    bench.grant("big", list(range(1, 12)), session_id="s")
    assert bench.released() == ["big"]


def test_a_new_lease_gives_way_to_a_pinned_one(bench: Bench) -> None:
    bench.grant("pinned", list(range(8)), pinned=True, age_seconds=99)
    bench.grant("new", [10, 11, 12])
    assert bench.released() == ["new"]


def test_a_lower_limit_evicts_at_the_next_step(bench: Bench) -> None:
    bench.grant("a", [1, 2, 3, 4], age_seconds=9)
    bench.grant("b", [5, 6, 7, 8], age_seconds=5)
    bench.publish(pinned_kv_limit=0.2)
    assert bench.released() == ["a"]


@DETERMINISTIC
@given(
    st.lists(st.tuples(st.sets(st.integers(0, 15), min_size=1, max_size=8), st.booleans(), st.booleans()), max_size=8),
    st.sampled_from([0.0, 0.15, 0.5, 0.7, 1.0]),
)
def test_what_stays_never_exceeds_the_limit(rows: list[tuple[set[int], bool, bool]], limit: float) -> None:
    bench = Bench(pinned_kv_limit=limit)
    for index, (blocks, pinned, is_step) in enumerate(rows):
        bench.grant(str(index), sorted(blocks), pinned=pinned, age_seconds=50 - index)
        staying = [lease.blocks() for lease in bench.control.table if lease.ending is None]
        assert len(frozenset[int]().union(*staying)) <= int(limit * NUM_GPU_BLOCKS)
        if is_step:
            bench.released()


# ---------------------------------------------------------------- pressure


def test_a_request_without_room_gets_leased_blocks_at_once(bench: Bench) -> None:
    bench.grant("a", [1, 2], age_seconds=9)
    bench.grant("b", [3, 4], age_seconds=5)
    bench.num_free = 5
    bench.make_room(23)
    assert bench.released() == ["a"]
    assert bench.ends() == [("a", LeaseState.RELEASED, "pressure")]


def test_a_request_that_fits_evicts_nothing(bench: Bench) -> None:
    bench.grant("a", [1, 2])
    bench.make_room(39)
    bench.step()
    assert bench.released() == []


def test_asking_again_while_blocks_are_on_their_way_evicts_no_more(bench: Bench) -> None:
    bench.grant("a", [1, 2], age_seconds=9)
    bench.grant("b", [3, 4], age_seconds=5)
    bench.num_free = 5
    for _ in range(5):
        bench.make_room(27)
    assert bench.orders().releases == ["req-a"]
    assert bench.control.table.num_ending == 1


def test_a_few_free_blocks_are_kept_for_growing_requests(bench: Bench) -> None:
    bench.grant("a", [1, 2], age_seconds=9)
    bench.grant("b", [3, 4], age_seconds=5)
    bench.num_free = LOW_WATER_BLOCKS - 1
    bench.step()
    assert bench.released() == ["a"]


# ---------------------------------------------------------------- rewritten histories


def test_a_lease_of_a_rewritten_history_goes_with_the_next_grant(bench: Bench) -> None:
    """Field report 59 (defilantech/LLMKube#1286): not held to its TTL at every turn of a compacting agent."""
    bench.grant("old", [1, 2], session_id="s")
    bench.grant("branch", [3, 4], session_id="s", tokens=[*range(4), 9, 9, 9, 9])
    lease = a_lease("new", [5, 6], session_id="s", tokens=range(50, 58))
    bench.control.grant(lease, replaces=["lease-old", "lease-nobody", "lease-new"])
    assert bench.released() == ["old"]
    assert bench.ends() == [("old", LeaseState.SUPERSEDED, "rewritten")]


@pytest.mark.parametrize(
    "difference", [{"session_id": "t"}, {"tenant": "other"}, {"pinned": True}, {"is_handoff": True}]
)
def test_no_other_lease_is_replaced(bench: Bench, difference: dict[str, object]) -> None:
    changes = dict(difference)
    if changes.pop("is_handoff", False):
        changes["kind"] = LeaseKind.HANDOFF
    bench.grant("old", [1, 2], **{"session_id": "s", **changes})
    bench.control.grant(a_lease("new", [5, 6], session_id="s", tokens=range(50, 58)), replaces=["lease-old"])
    assert bench.released() == []


# ---------------------------------------------------------------- leases that nobody reads


def test_blocks_of_leases_that_nobody_has_read_are_counted(bench: Bench) -> None:
    """Field report 59: blocks that are pinned for nothing are shown."""
    bench.grant("read", [1, 2, 3])
    bench.grant("unread", [4, 5])
    assert bench.control.table.num_unread_blocks == 5
    bench.control.note_reads(["req-read"])
    assert bench.control.table.num_unread_blocks == 2


def test_what_unread_leases_cost_is_summed_when_they_end(bench: Bench) -> None:
    now = time.perf_counter()
    bench.grant("read", [1, 2, 3], granted_at=now - 100)
    bench.grant("unread", [4, 5], granted_at=now - 10)
    bench.control.note_reads(["req-read"])
    for name in ("read", "unread"):
        bench.control.ended(f"req-{name}")
    assert 20 <= bench.control.unread_block_seconds < 40
