"""The lease table: times run down, pinned ones don't, and only the engine ends a lease."""

import pytest

from connector.agent.leases import LeaseTable
from connector.protocol import LeaseExtended, LeaseRenewed
from tests.connector.agent.samples import SAMPLED, UNSAMPLED, offer


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> LeaseTable:
    return LeaseTable(clock)


def remaining(table: LeaseTable) -> dict[str, float]:
    return {held.lease.lease_id: held.lease.remaining_seconds for held in table.offers()}


def test_remaining_time_runs_down_to_zero_and_the_lease_stays(table: LeaseTable, clock: Clock) -> None:
    table.grant(offer("a", remaining_seconds=30.0))
    clock.now += 10.0
    assert remaining(table) == {"a": 20.0}
    clock.now += 100.0
    assert remaining(table) == {"a": 0.0}


def test_pinned_lease_keeps_its_time_and_is_never_overdue(table: LeaseTable, clock: Clock) -> None:
    table.grant(offer("a", remaining_seconds=30.0, pinned=True))
    clock.now += 100.0
    assert remaining(table) == {"a": 30.0}
    held = table.end("a")
    assert held is not None
    assert not table.is_overdue(held)


def test_renewal_replaces_offer_and_time_but_not_the_chain(table: LeaseTable, clock: Clock) -> None:
    table.grant(offer("a", remaining_seconds=30.0))
    clock.now += 10.0
    renewal = LeaseRenewed(lease=LeaseExtended(lease_id="a", remaining_seconds=500.0), offer="again")
    assert table.renew(renewal)
    (held,) = table.offers()
    assert (held.offer, held.chain, held.lease.remaining_seconds) == ("again", ("c1", "c2"), 500.0)
    assert not table.renew(LeaseRenewed(lease=LeaseExtended(lease_id="b", remaining_seconds=1.0), offer="x"))
    assert len(table) == 1


def test_repeated_grant_is_not_new_and_keeps_when_and_from_whom_it_was_learned(table: LeaseTable, clock: Clock) -> None:
    assert table.grant(offer("a"), SAMPLED)
    clock.now += 5.0
    assert not table.grant(offer("a", token="again"), UNSAMPLED)
    held = table.end("a")
    assert held is not None
    assert held.traceparent == SAMPLED
    assert table.seconds_since_learned(held) == 5.0


def test_known_offer_is_told_from_a_renewed_one(table: LeaseTable) -> None:
    table.grant(offer("a"))
    assert table.has(offer("a"))
    assert not table.has(offer("a", token="again"))
    assert not table.has(offer("b"))


def test_leases_that_the_engine_no_longer_lists_end(table: LeaseTable, clock: Clock) -> None:
    for lease_id, seconds in (("kept", 30.0), ("overdue", 5.0), ("gone", 30.0)):
        table.grant(offer(lease_id, remaining_seconds=seconds))
    clock.now += 10.0
    ended = table.end_all_but(["kept", "unknown"])
    assert [(held.offer.lease.lease_id, table.is_overdue(held)) for held in ended] == [
        ("overdue", True),
        ("gone", False),
    ]
    assert len(table) == 1
    assert [held.offer.lease.lease_id for held in table.end_all()] == ["kept"]
    assert table.end("kept") is None
