"""The lease table: distinct blocks, exact supersession, and eviction of enough and no more."""

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.engine.leases import Lease, LeaseTable
from connector.engine.offers import KvOffer
from connector.protocol import LeaseKind, LeaseState
from connector.signing import FleetKey
from tests.connector.engine.builders import FLEET_KEY, a_lease

DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=200)


def sign(offer: KvOffer) -> str:
    return FLEET_KEY.sign("offer", offer)


def table_of(*leases: Lease) -> LeaseTable:
    table = LeaseTable(sign)
    for lease in leases:
        table.add(lease)
    return table


def ids(leases: Sequence[Lease]) -> list[str]:
    return [lease.lease_id.removeprefix("lease-") for lease in leases]


# ---------------------------------------------------------------- counting and finding


def test_a_block_shared_by_two_leases_counts_once() -> None:
    table = table_of(a_lease("a", [1, 2, 3]), a_lease("b", [2, 3, 4]))
    assert table.num_blocks == 4
    table.remove("req-a")
    assert table.num_blocks == 3
    table.remove("req-b")
    assert table.num_blocks == 0


@DETERMINISTIC
@given(st.lists(st.sets(st.integers(0, 8), max_size=6), max_size=6), st.data())
def test_num_blocks_is_the_size_of_the_union_after_any_removals(holdings: list[set[int]], data: st.DataObject) -> None:
    table = table_of(*(a_lease(str(index), sorted(blocks)) for index, blocks in enumerate(holdings)))
    left = dict(enumerate(holdings))
    for index in data.draw(st.permutations(range(len(holdings)))):
        assert table.num_blocks == len(set().union(*left.values()))
        table.remove(f"req-{index}")
        del left[index]
    assert table.num_blocks == len(table) == 0


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


def test_handoffs_are_counted_apart_from_sessions() -> None:
    table = table_of(a_lease("a"), a_lease("b", kind=LeaseKind.HANDOFF))
    assert (table.num_session_leases, len(table)) == (1, 2)


# ---------------------------------------------------------------- offers and extension


def test_an_offered_lease_says_what_it_holds_and_for_how_long() -> None:
    lease = a_lease("a", [1, 2], tokens=range(7))
    offered = table_of(lease).offered(lease)
    granted = offered.lease
    assert (granted.lease_id, granted.session_id, granted.turn_id) == ("lease-a", "session-a", "turn-a")
    assert (granted.num_tokens, granted.num_blocks, granted.num_bytes) == (7, 2, 2048)
    assert 479 < granted.remaining_seconds <= 480
    assert offered.chain == ("c1",)
    assert FLEET_KEY.verify("offer", offered.offer, KvOffer) == lease.offer


def test_remaining_time_is_never_negative() -> None:
    assert a_lease("a", age_seconds=1000).granted().remaining_seconds == 0


@pytest.mark.parametrize(("remaining", "pinned"), [(900.0, False), (5.0, False), (1e8, True)])
def test_extending_re_signs_the_offer_with_a_fresh_expiry(remaining: float, pinned: bool) -> None:
    lease = a_lease("a", age_seconds=400)
    before = lease.offer
    renewed = table_of(lease).extend(lease, remaining, pinned=pinned)
    offer = FLEET_KEY.verify("offer", renewed.offer, KvOffer)
    now = time.perf_counter()
    assert offer.expires_at_source is not None
    assert now + remaining - 1 < offer.expires_at_source <= now + remaining
    assert offer.expires_at_source == lease.deadline
    assert (renewed.lease.remaining_seconds, renewed.lease.pinned, lease.pinned) == (remaining, pinned, pinned)
    assert (offer.block_ids, offer.digests, offer.fence_generation) == (
        before.block_ids,
        before.digests,
        before.fence_generation,
    )


def test_signing_is_by_the_key_that_was_given() -> None:
    other = FleetKey({"k2": b"x" * 32})
    table = LeaseTable(lambda offer: other.sign("offer", offer))
    lease = a_lease("a")
    table.add(lease)
    assert other.verify("offer", table.offered(lease).offer, KvOffer) == lease.offer


# ---------------------------------------------------------------- supersession

OLD = list(range(10))


@pytest.mark.parametrize(
    ("new_tokens", "is_superseded"),
    [
        pytest.param([*OLD, 5, 5], True, id="appended"),
        pytest.param(OLD, True, id="equal"),
        pytest.param([*OLD[:9], 99, 99], True, id="differs in the partial block only"),
        pytest.param([*OLD[:7], 99, *OLD[8:], 1], False, id="differs in a whole block"),
        pytest.param(OLD[:9], False, id="one token shorter"),
        pytest.param(OLD[:8], False, id="whole blocks only"),
        pytest.param([99, *OLD[1:], 1, 1], False, id="differs from the start"),
    ],
)
def test_only_what_the_new_lease_covers_is_superseded(new_tokens: list[int], is_superseded: bool) -> None:
    old = a_lease("old", [1, 2, 3], tokens=OLD, session_id="s")
    new = a_lease("new", [1, 2, 4], tokens=new_tokens, session_id="s")
    assert ids(table_of(old, new).superseded_by(new)) == (["old"] if is_superseded else [])


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": "other"},
        {"tenant": "other"},
        {"pinned": True},
        {"kind": LeaseKind.HANDOFF},
        {"ending": (LeaseState.RELEASED, "command")},
    ],
)
def test_leases_of_others_and_pinned_ones_are_not_superseded(changes: dict[str, object]) -> None:
    old = a_lease("old", [1, 2, 3], tokens=OLD, **{"session_id": "s", **changes})  # type: ignore[arg-type]  # any field may change
    new = a_lease("new", [1, 2, 3], tokens=[*OLD, 1], session_id="s")
    assert table_of(old, new).superseded_by(new) == []


def test_a_lease_does_not_supersede_itself() -> None:
    new = a_lease("new", tokens=OLD)
    assert table_of(new).superseded_by(new) == []


# ---------------------------------------------------------------- eviction


def test_eviction_takes_the_oldest_first_and_stops_when_it_is_enough() -> None:
    table = table_of(
        a_lease("young", [1, 2], age_seconds=1),
        a_lease("oldest", [3, 4], age_seconds=9),
        a_lease("old", [5, 6], age_seconds=5),
    )
    assert ids(table.to_evict(1)) == ids(table.to_evict(2)) == ["oldest"]
    assert ids(table.to_evict(3)) == ["oldest", "old"]
    assert ids(table.to_evict(99)) == ["oldest", "old", "young"]


@pytest.mark.parametrize("wanted", [0, -3])
def test_nothing_is_evicted_when_nothing_is_needed(wanted: int) -> None:
    assert table_of(a_lease("a")).to_evict(wanted) == []


def test_pinned_leases_go_last_however_old() -> None:
    table = table_of(
        a_lease("pinned", [1], age_seconds=99, pinned=True),
        a_lease("young", [2], age_seconds=1),
    )
    assert ids(table.to_evict(1)) == ["young"]
    assert ids(table.to_evict(2)) == ["young", "pinned"]


def test_a_block_that_another_lease_still_holds_is_not_counted_as_freed() -> None:
    table = table_of(
        a_lease("a", [1, 2, 3], age_seconds=9),
        a_lease("b", [1, 2, 3, 4], age_seconds=5),
        a_lease("c", [9], age_seconds=1),
    )
    assert ids(table.to_evict(1)) == ["a", "b"]


def test_leases_already_ending_count_towards_what_is_needed() -> None:
    ending = a_lease("ending", [1, 2], age_seconds=9, ending=(LeaseState.RELEASED, "command"))
    table = table_of(ending, a_lease("a", [3], age_seconds=5))
    assert table.to_evict(2) == []
    assert ids(table.to_evict(3)) == ["a"]


def test_handoffs_are_never_evicted() -> None:
    assert table_of(a_lease("a", kind=LeaseKind.HANDOFF)).to_evict(1) == []


@DETERMINISTIC
@given(
    st.lists(st.tuples(st.sets(st.integers(0, 9), min_size=1), st.booleans(), st.booleans()), max_size=6),
    st.integers(-1, 12),
)
def test_eviction_frees_enough_distinct_blocks_and_no_more_leases_than_needed(
    rows: list[tuple[set[int], bool, bool]], wanted: int
) -> None:
    leases = [
        a_lease(
            str(index),
            sorted(blocks),
            age_seconds=100 - index,
            pinned=pinned,
            ending=(LeaseState.RELEASED, "command") if ending else None,
        )
        for index, (blocks, pinned, ending) in enumerate(rows)
    ]
    table = table_of(*leases)
    chosen = table.to_evict(wanted)

    def num_freed(gone: Sequence[Lease]) -> int:
        left = [lease for lease in leases if lease not in gone and lease.ending is None]
        return table.num_blocks - len(frozenset[int]().union(*(lease.block_ids for lease in left)))

    candidates = [lease for lease in leases if lease.ending is None]
    assert num_freed(chosen) >= min(wanted, num_freed(candidates))
    assert not chosen or num_freed(chosen[:-1]) < wanted
    assert chosen == sorted(candidates, key=lambda lease: (lease.pinned, lease.renewed_at))[: len(chosen)]
