"""Sums per pair and minute are those of the transfers, however these are split into batches."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from controlplane.transfers.rollups import BUCKET_BOUNDS_MS, TransferRow, minutes_of
from tests.controlplane.placement.events import NOON

transfers = st.builds(
    TransferRow,
    id=st.uuids().map(str),
    direction=st.sampled_from(["P->D", "D->P"]),
    source=st.sampled_from(["a", "b"]),
    target=st.just("c"),
    session_id=st.just("s"),
    turn_id=st.just("t"),
    lease_id=st.just("l"),
    tokens=st.integers(0, 1000),
    blocks=st.just(1),
    bytes=st.integers(0, 2**40),
    post_ms=st.just(0.0),
    duration_ms=st.one_of(st.sampled_from(BUCKET_BOUNDS_MS), st.floats(0, 1e6)),
    outcome=st.sampled_from(["completed", "failed", "timeout", "fenced"]),
    reason=st.just(""),
    ranks=st.just(1),
    started_at=st.integers(0, 200).map(lambda seconds: NOON + timedelta(seconds=seconds)),
    trace_id=st.just(""),
    span_id=st.just(""),
)


@given(st.lists(transfers, max_size=40))
def test_sums_of_minutes_are_the_sums_of_transfers(rows: list[TransferRow]) -> None:
    minutes = minutes_of(rows)
    completed = [row for row in rows if row.outcome == "completed"]
    assert sum(minute.count for minute in minutes) == len(rows)
    assert sum(minute.failures for minute in minutes) == len(rows) - len(completed)
    assert sum(minute.bytes for minute in minutes) == sum(row.bytes for row in completed)
    assert sum(sum(minute.buckets) for minute in minutes) == len(completed)
    keys = [(minute.minute, minute.source, minute.target, minute.direction) for minute in minutes]
    assert keys == sorted(set(keys))


@given(transfers)
def test_duration_falls_into_the_bucket_whose_bound_it_does_not_pass(row: TransferRow) -> None:
    (minute,) = minutes_of([row])
    if row.outcome != "completed":
        assert sum(minute.buckets) == 0
        return
    position = minute.buckets.index(1)
    upper = BUCKET_BOUNDS_MS[position] if position < len(BUCKET_BOUNDS_MS) else float("inf")
    lower = BUCKET_BOUNDS_MS[position - 1] if position else -1.0
    assert lower < row.duration_ms <= upper
