"""The end of a pull, and what prefill hands over, on vLLM's own scheduler half: told once, nothing left behind."""

from pathlib import Path

import pytest
from msgspec import structs
from vllm.v1.request import Request, RequestStatus

from connector.engine import guards
from connector.engine.metadata import RankTransfer, WorkerReport
from connector.engine.offers import KvOffer
from connector.protocol import (
    Decision,
    LegDecided,
    TransferOutcome,
    TransferRecorded,
)
from tests.connector.engine.builders import FLEET_KEY, an_envelope
from tests.contract.scheduler_bench import SchedulerBench, offered_by
from tests.contract.test_scheduler_arrival import explode

HISTORY = list(range(12))


@pytest.fixture(autouse=True)
def _clean_counter() -> None:
    guards.num_contained.clear()


@pytest.fixture
def prefill(tmp_path: Path) -> SchedulerBench:
    (tmp_path / "p").mkdir()
    return SchedulerBench(tmp_path / "p", is_prefill=True)


@pytest.fixture
def decode(tmp_path: Path) -> SchedulerBench:
    (tmp_path / "d").mkdir()
    return SchedulerBench(tmp_path / "d", is_prefill=False)


def pulling(prefill: SchedulerBench, decode: SchedulerBench) -> Request:
    """A prefill request whose pull of 12 tokens is under way."""
    request = prefill.arrive([*HISTORY, 1], an_envelope(), offered_by(decode, HISTORY))
    assert prefill.allocate(request) == 12
    prefill.orders()
    return request


def a_rank(outcome: str, reason: str = "") -> RankTransfer:
    return RankTransfer("req-1", outcome, reason, 500, 6, 1.0, 20.0, 25.0)


# ---------------------------------------------------------------- the end of a pull


def test_a_completed_pull_is_one_transfer_and_one_decision(prefill: SchedulerBench, decode: SchedulerBench) -> None:
    pulling(prefill, decode)
    prefill.results(WorkerReport(transfers=[a_rank("completed")]), finished_recving={"req-1"})
    (transfer,) = prefill.events(TransferRecorded)
    assert (transfer.outcome, transfer.num_tokens, transfer.num_bytes) == (TransferOutcome.COMPLETED, 12, 500)
    assert (transfer.source_engine, transfer.target_engine) == ("d-0", "p-0")
    assert (prefill.decided().decision, prefill.decided().num_pulled_tokens) == (Decision.PULLED, 12)


@pytest.mark.parametrize(
    ("outcome", "decision"),
    [
        ("failed", Decision.TRANSFER_FAILED),
        ("timeout", Decision.TIMEOUT),
        ("fenced", Decision.EXPIRED),
    ],
)
def test_any_other_end_recomputes_with_its_reason(
    prefill: SchedulerBench, decode: SchedulerBench, outcome: str, decision: Decision
) -> None:
    request = pulling(prefill, decode)
    report = WorkerReport(transfers=[a_rank(outcome, "why")])
    prefill.results(report, finished_recving={"req-1"}, failed_recving={"req-1"})
    assert (prefill.decided().decision, prefill.decided().num_pulled_tokens) == (decision, 0)
    assert prefill.events(TransferRecorded)[0].reason == "why"
    assert prefill.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)


def test_a_pull_whose_client_left_is_still_recorded(prefill: SchedulerBench, decode: SchedulerBench) -> None:
    request = pulling(prefill, decode)
    prefill.finish(request, status=RequestStatus.FINISHED_ABORTED)
    prefill.results(WorkerReport(transfers=[a_rank("completed")]), finished_recving={"req-1"})
    assert len(prefill.events(TransferRecorded)) == len(prefill.events(LegDecided)) == 1
    assert prefill.leftovers() == []


def test_an_exception_after_a_step_is_contained(prefill: SchedulerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill.scheduler.transfers, "note", explode)
    prefill.results(WorkerReport(transfers=[a_rank("completed")]))
    assert guards.num_contained["_after_step"] == 1


# ---------------------------------------------------------------- quarantine


def test_a_late_pulls_blocks_are_held_before_vllm_frees_them(prefill: SchedulerBench, decode: SchedulerBench) -> None:
    pulling(prefill, decode)
    report = WorkerReport(transfers=[a_rank("timeout")], quarantined=["req-1"])
    prefill.results(report, finished_recving={"req-1"}, failed_recving={"req-1"})
    assert (prefill.cache.touched, prefill.cache.freed) == ([40, 41, 42, 43], [])
    assert prefill.scheduler.has_pending_push_work()
    prefill.results(WorkerReport(ended=["req-1"]))
    assert prefill.cache.freed == [43, 42, 41, 40]
    assert not prefill.scheduler.has_pending_push_work()


@pytest.mark.parametrize("part", ["transfers.note", "control.note_reads", "control.note_expired", "transfers.finish"])
def test_no_fault_of_the_bookkeeping_frees_blocks_that_may_be_written_to(
    prefill: SchedulerBench, decode: SchedulerBench, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulling(prefill, decode)
    owner, _, method = part.partition(".")
    monkeypatch.setattr(getattr(prefill.scheduler, owner), method, explode)
    prefill.results(WorkerReport(quarantined=["req-1"]), finished_recving={"req-1"}, failed_recving={"req-1"})
    assert prefill.cache.touched == [40, 41, 42, 43]
    prefill.results(WorkerReport(ended=["req-1"]))
    assert prefill.cache.freed == [43, 42, 41, 40]


def test_a_pull_that_failed_in_time_holds_nothing(prefill: SchedulerBench, decode: SchedulerBench) -> None:
    pulling(prefill, decode)
    prefill.results(WorkerReport(transfers=[a_rank("failed")]), finished_recving={"req-1"}, failed_recving={"req-1"})
    assert (prefill.cache.touched, prefill.scheduler.has_pending_push_work()) == ([], False)


# ---------------------------------------------------------------- prefill's handoff


def test_prefill_answers_with_its_offer_and_nothing_else(prefill: SchedulerBench) -> None:
    request = prefill.arrive(HISTORY[:10], an_envelope())
    prefill.allocate(request)
    is_kept, answer = prefill.finish(request)
    assert is_kept
    assert answer is not None
    assert set(answer) == {"backhaul"}
    assert set(answer["backhaul"]) == {"offer", "decision", "num_pulled_tokens", "lease_id", "diverged_at_token"}
    assert answer["backhaul"]["decision"] is Decision.NO_PLACEMENT
    offer = FLEET_KEY.verify("offer", answer["backhaul"]["offer"], KvOffer)
    assert (offer.num_tokens, offer.block_ids, offer.expires_at_source) == (10, ((40, 41, 42),), None)
    assert offer.lease_id == answer["backhaul"]["lease_id"]
    assert list(prefill.metadata().reqs_to_send) == ["req-1"]


def test_prefill_tells_how_its_own_pull_went(prefill: SchedulerBench, decode: SchedulerBench) -> None:
    request = pulling(prefill, decode)
    prefill.results(WorkerReport(transfers=[a_rank("completed")]), finished_recving={"req-1"})
    _, answer = prefill.finish(request)
    assert answer is not None
    assert (answer["backhaul"]["decision"], answer["backhaul"]["num_pulled_tokens"]) == (Decision.PULLED, 12)


def test_a_handoff_goes_on_while_reuse_is_off(prefill: SchedulerBench) -> None:
    policy = structs.replace(prefill.options.policy, bidirectional_kv_xfer=False, decoder_kv_blocks_ttl=0)
    prefill.scheduler.live_policy.set(1, policy)
    request = prefill.arrive(HISTORY, an_envelope())
    prefill.allocate(request)
    assert prefill.finish(request)[0]
    assert prefill.decided().decision is Decision.DISABLED


def test_a_stock_peer_is_served_as_vllm_does(prefill: SchedulerBench) -> None:
    request = prefill.arrive(HISTORY, None)
    prefill.allocate(request)
    is_kept, answer = prefill.finish(request)
    assert is_kept
    assert answer is not None
    assert (answer["remote_engine_id"], answer["remote_block_ids"]) == ("own-boot", ([40, 41, 42],))
    prefill.results(finished_sending={"req-1"})
    assert (prefill.leftovers(), prefill.sent) == ([], [])
