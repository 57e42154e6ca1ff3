"""Eviction: the least expected benefit first, pinned leases last, enough blocks and no lease more than needed."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.engine.eviction import MAX_RANKED, Ranking
from connector.engine.lease import Lease, Standing
from connector.engine.leases import LeaseTable
from connector.protocol import LeaseKind, LeaseState
from tests.connector.engine.builders import a_lease
from tests.connector.engine.test_leases import ids, table_of, union


def by_unique_blocks(standing: Standing) -> float:
    """All are equally likely to return."""
    return float(standing.num_unique)


def evicted(table: LeaseTable, num_blocks: int, keep: Lease | None = None, wanted: Sequence[int] = ()) -> list[str]:
    """Who would go; the table is then as it was."""
    chosen = Ranking(table, by_unique_blocks).choose(num_blocks, wanted, keep)
    for lease in chosen:
        table.revive(lease)
    return ids(chosen)


def test_the_least_benefit_goes_first() -> None:
    table = table_of(a_lease("big", [1, 2, 3]), a_lease("small", [4]), a_lease("middle", [5, 6]))
    assert evicted(table, 1) == ["small"]
    assert evicted(table, 3) == ["small", "middle"]
    assert evicted(table, 99) == ["small", "middle", "big"]


def test_a_lease_that_turns_out_superfluous_is_spared() -> None:
    table = table_of(a_lease("small", [1]), a_lease("big", [2, 3, 4, 5]))
    assert evicted(table, 3) == ["big"]
    assert evicted(table, 5) == ["small", "big"]


def test_of_equal_benefit_the_longest_idle_goes() -> None:
    table = table_of(a_lease("new", [1]), a_lease("old", [2], age_seconds=9), a_lease("older", [3], age_seconds=20))
    assert evicted(table, 2) == ["older", "old"]


@pytest.mark.parametrize("wanted", [0, -3])
def test_nothing_is_evicted_when_nothing_is_needed(wanted: int) -> None:
    assert evicted(table_of(a_lease("a")), wanted) == []


def test_pinned_leases_go_last_however_little_they_save() -> None:
    table = table_of(a_lease("pinned", [1], pinned=True), a_lease("big", [2, 3, 4]))
    assert evicted(table, 1) == ["big"]
    assert evicted(table, 4) == ["big", "pinned"]


def test_blocks_that_another_lease_holds_are_freed_with_the_last_holder_only() -> None:
    table = table_of(
        a_lease("a", [1, 2, 3], age_seconds=9), a_lease("b", [1, 2, 3], age_seconds=5), a_lease("c", [8, 9])
    )
    assert evicted(table, 1) == evicted(table, 2) == ["c"]
    assert evicted(table, 3) == ["a", "b"]


def test_a_branch_goes_before_what_it_shares() -> None:
    table = table_of(a_lease("trunk", [1, 2, 3, 4, 5]), a_lease("branch", [1, 2, 3, 6]))
    assert evicted(table, 1) == ["branch"]


def test_leases_that_are_ending_or_hand_over_are_left_alone() -> None:
    table = table_of(
        a_lease("ending", [1], ending=(LeaseState.RELEASED, "command")),
        a_lease("handoff", [2], kind=LeaseKind.HANDOFF),
    )
    assert evicted(table, 2) == []


def test_the_lease_to_keep_stays() -> None:
    kept = a_lease("kept", [1])
    assert evicted(table_of(kept, a_lease("other", [2, 3])), 1, keep=kept) == ["other"]


def test_blocks_that_the_asker_takes_as_cached_are_no_gain() -> None:
    table = table_of(a_lease("prefix", [1, 2], age_seconds=9), a_lease("other", [3, 4]))
    assert evicted(table, 1) == ["prefix"]
    assert evicted(table, 1, wanted=[1, 2]) == ["other"]


def test_one_ranking_serves_choice_after_choice() -> None:
    leases = [a_lease(str(size), range(10 * size, 11 * size)) for size in (1, 2, 3)]
    table = table_of(*leases)
    ranking = Ranking(table, by_unique_blocks)
    order = []
    for _ in range(3):
        (lease,) = ranking.choose(1)
        lease.ending = (LeaseState.RELEASED, "pressure")
        order.append(lease)
    assert ids(order) == ["1", "2", "3"]
    assert ranking.is_used_up


def test_what_changed_since_the_ranking_counts_at_the_choice() -> None:
    small, big = a_lease("small", [1]), a_lease("big", [2, 3])
    table = table_of(small, big)
    ranking = Ranking(table, by_unique_blocks)
    table.pin(small, pinned=True)
    newer = a_lease("newer", [4])
    table.add(newer)
    ranking.add(newer)
    assert ids(ranking.choose(1)) == ["newer"]


def test_who_was_kept_or_spared_may_go_the_next_time() -> None:
    kept, big = a_lease("kept", [1]), a_lease("big", [2, 3, 4])
    table = table_of(kept, a_lease("small", [5], age_seconds=9), big)
    ranking = Ranking(table, by_unique_blocks)
    chosen = ranking.choose(3, keep=kept)
    assert ids(chosen) == ["big"]
    big.ending = (LeaseState.RELEASED, "pressure")
    assert ids(ranking.choose(2)) == ["small", "kept"]


def test_only_so_many_are_ranked_at_a_time() -> None:
    table = LeaseTable()
    table.bind(2000)
    for number in range(MAX_RANKED + 50):
        table.add(a_lease(str(number), [number], age_seconds=number))
    chosen = Ranking(table, by_unique_blocks).choose(MAX_RANKED + 10)
    assert ids(chosen) == [str(number) for number in range(MAX_RANKED + 49, 49, -1)]


ROWS = st.lists(
    st.tuples(st.sets(st.integers(0, 9), min_size=1), st.booleans(), st.booleans(), st.integers(0, 50)), max_size=6
)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(ROWS, st.integers(-1, 12))
def test_enough_goes_and_no_lease_more_than_needed(rows: list[tuple[set[int], bool, bool, int]], wanted: int) -> None:
    leases = [
        a_lease(str(index), sorted(blocks), age_seconds=age, pinned=pinned,
                ending=(LeaseState.RELEASED, "command") if ending else None)
        for index, (blocks, pinned, ending, age) in enumerate(rows)
    ]  # fmt: skip
    candidates = [lease for lease in leases if lease.ending is None]
    chosen = Ranking(table_of(*leases), by_unique_blocks).choose(wanted)

    def num_freed(gone: Sequence[Lease]) -> int:
        return len(union(candidates)) - len(union([lease for lease in candidates if lease not in gone]))

    assert num_freed(chosen) >= min(wanted, num_freed(candidates))
    if wanted <= num_freed(candidates):
        for lease in chosen:
            assert num_freed([other for other in chosen if other is not lease]) < wanted
    if any(lease.pinned for lease in chosen):
        unpinned = [lease for lease in candidates if not lease.pinned]
        assert num_freed(unpinned) < wanted
