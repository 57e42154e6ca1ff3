"""Transfers are stored once each, with the sums of their pairs, on a real Postgres."""

from datetime import datetime, timedelta

import pytest

from connector.protocol import Direction, Event, TransferOutcome
from controlplane.fleet.models import Pair
from controlplane.placement.bounds import RefusedEventError
from controlplane.placement.facts import Dated
from controlplane.transfers import actions
from controlplane.transfers.models import PairMinute, Transfer
from tests.controlplane.placement.events import NOON, SESSION_ID, TRACE_ID, TURN_ID, after, granted
from tests.controlplane.transfers.events import moved

pytestmark = pytest.mark.django_db


def send(event: Event, at: datetime = NOON, *, engine: str = "p0") -> None:
    actions.apply_event(event, engine_name=engine, incarnation="i1", occurred_at=at)


def test_transfer_is_stored_as_reported() -> None:
    send(moved())
    row = Transfer.objects.get()
    assert (row.id, row.direction, row.source, row.target) == ("transfer-1", "D->P", "d0", "p0")
    assert (row.session_id, str(row.turn_id), row.lease_id) == (SESSION_ID, TURN_ID, "lease-1")
    assert (row.tokens, row.blocks, row.bytes, row.ranks) == (608, 19, 622_592, 1)
    assert (row.post_ms, row.duration_ms, row.outcome, row.reason) == (0.4, 12.5, "completed", "")
    assert (row.started_at, row.trace_id) == (NOON - timedelta(milliseconds=12.5), TRACE_ID)
    assert row.span_id == "00f067aa0ba902b7"


def test_repeated_transfer_counts_once_everywhere() -> None:
    batch = [Dated(moved(), NOON), Dated(moved(), NOON), Dated(moved("transfer-2"), NOON)]
    actions.apply_events(batch, engine_name="p0", incarnation="i1")
    actions.apply_events(batch, engine_name="p0", incarnation="i1")
    assert (Transfer.objects.count(), PairMinute.objects.get().count, Pair.objects.get().num_transfers) == (2, 2, 2)
    assert Pair.objects.get().num_bytes == 2 * 622_592


def test_minutes_hold_the_sums_of_their_transfers() -> None:
    send(moved("a", duration_ms=1.0, num_bytes=100, num_tokens=32), after(1))
    send(moved("b", duration_ms=1.1, num_bytes=200, num_tokens=64), after(2))
    send(moved("c", duration_ms=9000.0, num_bytes=300, num_tokens=96), after(30))
    send(moved("d", outcome=TransferOutcome.TIMEOUT, duration_ms=20.0, num_bytes=999), after(40))
    send(moved("e"), after(61))
    first, second = PairMinute.objects.order_by("minute")
    assert (first.minute, second.minute) == (NOON, after(60))
    assert (first.count, first.failures, first.bytes, first.tokens) == (4, 1, 600, 192)
    assert (first.duration_ms_sum, first.duration_ms_max) == (pytest.approx(9002.1), 9000.0)
    assert first.buckets == [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert (second.count, sum(second.buckets)) == (1, 1)


def test_directions_and_pairs_are_kept_apart() -> None:
    send(moved("back"))
    send(moved("there", direction=Direction.PREFILL_TO_DECODE, source_engine="p0", target_engine="d0"), engine="d0")
    send(moved("elsewhere", source_engine="d1"))
    assert PairMinute.objects.count() == Pair.objects.count() == 3


def test_engine_can_not_report_what_another_read() -> None:
    with pytest.raises(RefusedEventError):
        send(moved(), engine="p1")
    assert not Transfer.objects.exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"transfer_id": ""},
        {"transfer_id": "t" * 201},
        {"source_engine": ""},
        {"turn_id": "nope"},
        {"num_bytes": -1},
        {"num_bytes": 2**63},
        {"duration_ms": -0.1},
        {"duration_ms": float("nan")},
        {"session_id": "nul\0"},
    ],
)
def test_impossible_transfer_is_refused_alone(changes: dict[str, object]) -> None:
    bad = moved(**{"transfer_id": "bad"} | changes)
    batch = [Dated(bad, NOON), Dated(moved("good"), NOON)]
    refusals = actions.apply_events(batch, engine_name="p0", incarnation="i1")
    assert [refusal.event for refusal in refusals] == [bad]
    assert Transfer.objects.get().id == "good"


def test_malformed_trace_and_span_ids_are_left_empty() -> None:
    send(moved(traceparent="garbage", span_id="0" * 16))
    assert (Transfer.objects.get().trace_id, Transfer.objects.get().span_id) == ("", "")


def test_other_events_are_ignored() -> None:
    send(granted())
    assert not Transfer.objects.exists()


def test_reads_after_expiry_are_counted_by_pair() -> None:
    """Field report 21 (aws-samples/aws-do-eks#84): such a read is an alarm, also where the fence caught it."""
    send(moved("a"))
    for name in ("b", "c"):
        send(moved(name, outcome=TransferOutcome.FENCED))
    send(moved("d", outcome=TransferOutcome.FAILED))
    send(moved("d", outcome=TransferOutcome.FENCED))
    pair = Pair.objects.get()
    assert (pair.num_transfers, pair.num_not_completed, pair.num_fenced) == (4, 3, 2)
