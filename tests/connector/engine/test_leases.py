"""The lease table: distinct blocks, live and held, unique holders, and lookups, all counted as leases come and go."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.engine.lease import Lease
from connector.engine.leases import LeaseTable
from connector.engine.slot_index import NUM_SLOTS
from connector.protocol import LeaseKind, LeaseState
from tests.connector.engine.builders import a_lease

DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=100)
NUM_BLOCKS = 40


def table_of(*leases: Lease) -> LeaseTable:
    table = LeaseTable()
    table.bind(NUM_BLOCKS)
    for lease in leases:
        table.add(lease)
    return table


def ids(leases: Sequence[Lease]) -> list[str]:
    return [lease.lease_id.removeprefix("lease-") for lease in leases]


def union(leases: Sequence[Lease]) -> set[int]:
    return set().union(*(lease.blocks() for lease in leases))


# ---------------------------------------------------------------- counting


def test_a_block_shared_by_two_leases_counts_once() -> None:
    table = table_of(a_lease("a", [1, 2, 3]), a_lease("b", [2, 3, 4]))
    assert table.num_blocks == 4
    table.remove("req-a")
    assert table.num_blocks == 3
    table.remove("req-b")
    assert table.num_blocks == 0


def test_a_retired_lease_holds_its_blocks_until_it_is_removed() -> None:
    a, b = a_lease("a", [1, 2, 3]), a_lease("b", [3, 4])
    table = table_of(a, b)
    freed, lone = table.retire(a)
    assert (freed, lone) == ([1, 2], {b.slot})
    assert (table.num_blocks, table.num_live_blocks, table.num_ending) == (4, 2, 1)
    a.ending = (LeaseState.RELEASED, "command")
    table.remove("req-a")
    assert (table.num_blocks, table.num_live_blocks, table.num_ending) == (2, 2, 0)


def test_a_revived_lease_is_as_if_it_had_never_been_retired() -> None:
    a, b = a_lease("a", [1, 2, 3], pinned=True), a_lease("b", [3, 4])
    table = table_of(a, b)
    table.retire(a)
    assert table.revive(a) == [1, 2]
    assert (a.num_unique, b.num_unique, table.num_live_blocks, table.num_ending, table.num_pinned) == (2, 1, 4, 0, 1)


Step = tuple[str, set[int], bool, bool]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "retire", "revive", "remove", "read"]),
        st.sets(st.integers(0, 9), max_size=6),
        st.booleans(),
        st.booleans(),
    ),
    max_size=25,
)


@DETERMINISTIC
@given(STEPS, st.data())
def test_every_count_is_that_of_a_recount(steps: list[Step], data: st.DataObject) -> None:
    table = table_of()
    live: list[Lease] = []
    retired: list[Lease] = []
    for number, (action, blocks, pinned, is_handoff) in enumerate(steps):
        if action == "add":
            kind = LeaseKind.HANDOFF if is_handoff else LeaseKind.SESSION
            live.append(a_lease(str(number), sorted(blocks), pinned=pinned and not is_handoff, kind=kind))
            table.add(live[-1])
        elif action in ("retire", "read") and live:
            lease = data.draw(st.sampled_from(live))
            if action == "read":
                table.note_read(lease, 1.0)
                continue
            table.retire(lease)
            live.remove(lease)
            retired.append(lease)
        elif action == "revive" and retired:
            live.append(retired.pop())
            table.revive(live[-1])
        elif action == "remove" and retired:
            lease = retired.pop(0)
            lease.ending = (LeaseState.RELEASED, "command")
            assert table.remove(lease.request_id) is lease
        check(table, live, retired)


def check(table: LeaseTable, live: list[Lease], retired: list[Lease]) -> None:
    sessions = [lease for lease in live if not lease.is_handoff]
    assert len(table) == len(live) + len(retired)
    assert table.num_blocks == len(union([*live, *retired]))
    assert table.num_live_blocks == len(union(live))
    assert table.num_ending == len(retired)
    assert table.num_live_sessions == len(sessions)
    assert table.num_session_leases == len(sessions) + sum(not lease.is_handoff for lease in retired)
    assert table.num_pinned == sum(lease.pinned for lease in live)
    assert table.num_unread_blocks == sum(len(lease.blocks()) for lease in sessions if lease.num_reads == 0)
    for lease in live:
        others = union([other for other in live if other is not lease])
        assert lease.num_unique == len(set(lease.blocks()) - others)


def test_as_many_leases_fit_as_there_are_fence_words() -> None:
    table = table_of(*(a_lease(str(number), [number % NUM_BLOCKS]) for number in range(NUM_SLOTS)))
    assert (len(table), table.num_blocks) == (NUM_SLOTS, NUM_BLOCKS)
    assert all(table.find(f"lease-{number}") is not None for number in range(NUM_SLOTS))
    for number in range(NUM_SLOTS):
        table.remove(f"req-{number}")
    assert (len(table), table.num_blocks, list(table)) == (0, 0, [])


# ---------------------------------------------------------------- finding


@pytest.mark.parametrize("key", ["lease-a", "req-a", "turn-a"])
def test_a_lease_is_found_by_lease_request_and_turn(key: str) -> None:
    table = table_of(a_lease("b"), a_lease("a"))
    found = table.find(key)
    assert found is not None
    assert found.lease_id == "lease-a"


@pytest.mark.parametrize("key", ["lease-a", "req-a", "turn-a", "session-a", ""])
def test_a_removed_or_unknown_lease_is_not_found(key: str) -> None:
    table = table_of(a_lease("a"), a_lease("b"))
    table.remove("req-a")
    assert table.find(key) is None


def test_removing_twice_changes_nothing() -> None:
    table = table_of(a_lease("a", [1]), a_lease("b", [1]))
    assert table.remove("req-a") is not None
    assert table.remove("req-a") is None
    assert (len(table), table.num_blocks) == (1, 1)


def test_a_session_shows_its_live_leases_and_no_others() -> None:
    ending = a_lease("ending", session_id="s", ending=(LeaseState.RELEASED, "command"))
    table = table_of(
        a_lease("a", session_id="s"),
        a_lease("b", session_id="s"),
        a_lease("c", session_id="other"),
        a_lease("d", session_id="s", tenant="other"),
        a_lease("e", session_id="s", kind=LeaseKind.HANDOFF),
        ending,
    )
    assert sorted(ids(table.of_session("default", "s"))) == ["a", "b"]
    assert table.of_session("default", "none") == []


def test_handoffs_are_counted_apart_from_sessions() -> None:
    table = table_of(a_lease("a"), a_lease("b", kind=LeaseKind.HANDOFF))
    assert (table.num_session_leases, len(table)) == (1, 2)


# ---------------------------------------------------------------- while a lease lasts


def test_a_read_moves_the_last_use_and_counts() -> None:
    lease = a_lease("a", [1, 2], age_seconds=50)
    table = table_of(lease)
    table.note_read(lease, 1234.5)
    assert (lease.used_at, lease.num_reads, table.num_unread_blocks) == (1234.5, 1, 0)


def test_pins_are_counted_once_however_often_they_are_set() -> None:
    lease = a_lease("a")
    table = table_of(lease)
    for pinned, count in [(True, 1), (True, 1), (False, 0), (False, 0)]:
        table.pin(lease, pinned=pinned)
        assert (lease.pinned, table.num_pinned) == (pinned, count)
