"""From the ranks' reports to one record: the worst outcome, the sum of bytes, the longest time."""

from typing import Any

import pytest

from connector.engine import transfers as transfers_module
from connector.engine.legs import Leg
from connector.engine.matching import Match
from connector.engine.metadata import RankTransfer
from connector.engine.transfers import TransferBook
from connector.protocol import Decision, Direction, PolicyValues, Role, TransferOutcome
from tests.connector.engine.builders import an_envelope, an_offer
from tests.contract.worker_bench import ManualClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    manual = ManualClock()
    monkeypatch.setattr(transfers_module, "time", manual)
    return manual


def a_leg(**changes: Any) -> Leg:
    leg = Leg(
        role=Role.PREFILL,
        envelope=an_envelope(traceparent="00-1-2-01"),
        policy=PolicyValues(),
        offer=an_offer(range(12)),
        match=Match(decision=Decision.PULLED, num_verified_tokens=12, num_pull_tokens=8, num_blocks=3),
        num_local_tokens=4,
    )
    for field, value in changes.items():
        setattr(leg, field, value)
    return leg


def a_rank(outcome: str = "completed", reason: str = "", **changes: Any) -> RankTransfer:
    values = {
        "request_id": "r",
        "outcome": outcome,
        "reason": reason,
        "num_bytes": 100,
        "num_descriptors": 6,
        "post_ms": 1.0,
        "duration_ms": 20.0,
        "start_age_ms": 25.0,
        **changes,
    }
    return RankTransfer(**values)


def finished(*ranks: RankTransfer, role: Role = Role.PREFILL) -> Any:
    book = TransferBook("p-0", role)
    book.start("r", a_leg())
    book.note(list(ranks))
    ended = book.finish("r")
    assert ended is not None
    assert not book.is_waiting
    return ended[1]


def test_one_record_says_what_moved_from_where_to_where() -> None:
    record = finished(a_rank())
    assert (record.source_engine, record.target_engine) == ("d-0", "p-0")
    assert (record.session_id, record.turn_id, record.lease_id) == ("session-1", "turn-1", "lease-1")
    assert (record.num_tokens, record.num_blocks, record.num_bytes) == (8, 2, 100)
    assert (record.outcome, record.reason, record.num_ranks) == (TransferOutcome.COMPLETED, "", 1)
    assert record.traceparent == "00-1-2-01"


@pytest.mark.parametrize(
    ("role", "direction"),
    [(Role.PREFILL, Direction.DECODE_TO_PREFILL), (Role.DECODE, Direction.PREFILL_TO_DECODE)],
)
def test_the_direction_is_towards_the_engine_that_reads(role: Role, direction: Direction) -> None:
    assert finished(a_rank(), role=role).direction is direction


def test_ranks_sum_up_their_bytes_and_the_slowest_counts() -> None:
    record = finished(a_rank(), a_rank(num_bytes=50, post_ms=3.0, duration_ms=10.0, start_age_ms=30.0))
    assert (record.num_bytes, record.num_ranks) == (150, 2)
    assert (record.post_ms, record.duration_ms) == (3.0, 20.0)
    assert record.start_age_ms == pytest.approx(30.0, abs=5.0)


@pytest.mark.parametrize(
    ("others", "outcome"),
    [
        (["completed"], TransferOutcome.COMPLETED),
        (["fenced", "completed"], TransferOutcome.FENCED),
        (["failed", "fenced"], TransferOutcome.FAILED),
        (["timeout", "failed", "fenced"], TransferOutcome.TIMEOUT),
    ],
)
def test_the_worst_rank_decides(others: list[str], outcome: TransferOutcome) -> None:
    ranks = [a_rank(), *(a_rank(other, "" if other == "completed" else f"why-{other}") for other in others)]
    for ordered in (ranks, ranks[::-1]):
        record = finished(*ordered)
        assert record.outcome is outcome
        assert record.reason == ("" if outcome is TransferOutcome.COMPLETED else f"why-{outcome.value}")


def test_a_pull_that_no_rank_reported_is_a_failure() -> None:
    record = finished()
    assert (record.outcome, record.reason, record.num_bytes) == (TransferOutcome.FAILED, "unreported", 0)
    assert record.num_ranks == 1


def test_the_age_grows_while_the_record_waits_for_other_ranks(clock: ManualClock) -> None:
    book = TransferBook("p-0", Role.PREFILL)
    book.start("r", a_leg())
    book.note([a_rank(start_age_ms=25.0)])
    clock.now += 2.0
    ended = book.finish("r")
    assert ended is not None
    assert ended[1].start_age_ms == pytest.approx(2025.0, abs=1)


def test_a_pull_ends_once_and_leaves_nothing_behind() -> None:
    book = TransferBook("p-0", Role.PREFILL)
    book.start("r", a_leg())
    book.note([a_rank()])
    assert book.is_waiting
    assert book.finish("r") is not None
    assert book.finish("r") is None
    book.start("r", a_leg())
    ended = book.finish("r")
    assert ended is not None
    assert ended[1].reason == "unreported"


def test_a_request_of_a_stock_peer_has_no_record() -> None:
    assert TransferBook("p-0", Role.PREFILL).finish("stock") is None


def test_each_record_has_an_id_of_its_own() -> None:
    assert finished(a_rank()).transfer_id != finished(a_rank()).transfer_id
