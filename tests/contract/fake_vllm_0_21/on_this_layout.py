"""What must hold on the layout of 0.21.0; run by ``test_layout_0_21.py`` in a process that imports these fakes."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from layout_bench import (
    PEER,
    WORD,
    Blocks,
    FullAttentionSpec,
    SchedulerHalf,
    SlidingWindowSpec,
    WorkerHalf,
    a_running_request,
)
from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import connector as vllms_connector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import worker as vllms_worker
from vllm.v1.request import RequestStatus

from connector.engine.base_classes import RELEASE
from connector.engine.connector import NixlConnector
from connector.engine.metadata import BackhaulMetadata, WorkerReport
from connector.engine.older_worker import DeclinedSource
from connector.protocol import Decision, LeaseOffer, Role
from tests.connector.engine.builders import an_envelope, an_offer
from tests.connector.engine.requests import leg_params

PROMPT = list(range(1, 18))


@pytest.fixture
def prefill(tmp_path: Path) -> Iterator[SchedulerHalf]:
    half = SchedulerHalf(tmp_path, is_prefill=True)
    yield half
    half.close()


@pytest.fixture
def decode(tmp_path: Path) -> Iterator[SchedulerHalf]:
    half = SchedulerHalf(tmp_path, is_prefill=False)
    yield half
    half.close()


@pytest.fixture
def worker(tmp_path: Path) -> WorkerHalf:
    return WorkerHalf(tmp_path)


def an_offer_for(half: SchedulerHalf, tokens: list[int]) -> Any:
    """A peer's, of blocks that this engine can read."""
    matcher = half.half.matcher
    request = a_running_request(tokens, leg_params(an_envelope(leg=half.half.role)))
    leg = matcher.open(request, request.kv_transfer_params, half.half.live_policy.values)
    chain = matcher.digest(request, leg, len(tokens))
    role = Role.DECODE if half.half.role is Role.PREFILL else Role.PREFILL
    return an_offer(
        tokens,
        role=role,
        incarnation=PEER,
        model_fingerprint=matcher.reader.fingerprint,
        digests=b"".join(chain.digests),
        tail_digest=chain.tail(tokens, len(tokens)),
    )


def a_pull(half: SchedulerHalf) -> tuple[Any, Any]:
    """A request that waits for 16 tokens in blocks 30 to 33, and this step's metadata."""
    params = leg_params(an_envelope(leg=half.half.role), an_offer_for(half, PROMPT[:16]))
    request = a_running_request(PROMPT, params, status=RequestStatus.WAITING_FOR_REMOTE_KVS)
    assert half.allocate(request, Blocks(range(30, 34))) == 16
    request.num_computed_tokens = 16
    return request, half.step()


def output(**facts: Any) -> Any:
    """vLLM's ``KVConnectorOutput`` of that release: it has no failed receives."""
    given = {"finished_sending": None, "finished_recving": None, "kv_connector_worker_meta": None, **facts}
    return SimpleNamespace(**given)


# ---------------------------------------------------------------- the façade


def test_it_is_vllms_single_class_with_what_it_lacks() -> None:
    assert RELEASE.version == "0.21.0"
    assert issubclass(NixlConnector, vllms_connector.NixlConnector)
    assert issubclass(NixlConnector, SupportsHMA)


def test_what_it_can_not_follow_is_acked_as_unsupported(decode: SchedulerHalf) -> None:
    unsupported = ("decoder_kv_blocks_ttl", "kv_lease_duration")
    assert decode.half.live_policy.applied().unsupported_fields == unsupported
    assert decode.half.reporter._hello().engine.unsupported_fields == unsupported


def test_addresses_of_the_fence_come_by_tensor_rank(prefill: SchedulerHalf) -> None:
    assert prefill.half.factory.fence_address_of_rank == {0: 0x9000}
    assert list(prefill.half.served) == [0]


def test_a_request_arrives_once_when_it_is_matched(prefill: SchedulerHalf) -> None:
    hostile = leg_params(None, remote_engine_id="forged", remote_block_ids=[[1]])
    request = a_running_request(PROMPT, hostile)
    for _ in range(2):
        assert prefill.facade.get_num_new_matched_tokens(request, 0) == (0, False)
    assert request.kv_transfer_params["remote_engine_id"] is None
    assert prefill.half.reporter._active == {"req-1"}


def test_a_request_that_ends_unmatched_tells_its_source(decode: SchedulerHalf) -> None:
    params = leg_params(an_envelope(leg=Role.DECODE), an_offer_for(decode, PROMPT))
    params.update(do_remote_decode=False, do_remote_prefill=True)
    request = a_running_request(PROMPT, params)
    assert decode.finish(request, RequestStatus.FINISHED_ABORTED) == (False, None)
    meta = decode.step()
    assert meta.reqs_to_recv == {}
    assert meta.declined_sources == [DeclinedSource(PEER, "req-d")]


def test_nixls_progress_thread_is_stopped_where_vllm_looks_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllms_worker, "nixl_agent_config", vllms_worker.nixl_agent_config)
    worker = WorkerHalf(tmp_path, backhaul_idle_poll_ms=1000)
    assert worker.half.agent_config == {"num_threads": 4, "enable_prog_thread": False}


# ---------------------------------------------------------------- leases


def test_a_decode_lease_has_the_policys_ttl_and_a_handoff_vllms_own(
    tmp_path: Path, decode: SchedulerHalf, prefill: SchedulerHalf
) -> None:
    decode.set_policy(decoder_kv_blocks_ttl=60)
    for half, seconds in ((decode, 60), (prefill, 480)):
        params = leg_params(an_envelope(leg=half.half.role))
        params.update(do_remote_decode=half is prefill)
        request = a_running_request(PROMPT, params)
        half.allocate(request, Blocks([1, 2]))
        assert half.finish(request)[0] is True
        remaining = half.step().reqs_to_send["req-1"] - time.perf_counter()
        assert seconds - 5 < remaining <= seconds
    assert [sent for sent in decode.sent if isinstance(sent, LeaseOffer)]


def test_a_short_lease_ends_before_a_longer_one_that_was_granted_first(worker: WorkerHalf) -> None:
    now = time.perf_counter()
    worker.hold("long", 1000, now)
    worker.hold("short", -1, now)
    sent, *_ = worker.results()
    assert sent == {"short"}
    assert list(worker.half._reqs_to_send) == ["long"]


# ---------------------------------------------------------------- pulls


def test_a_pull_counts_once_its_fence_has_answered(worker: WorkerHalf) -> None:
    worker.pull()
    worker.nixl.reads[0].state = "DONE"
    assert worker.results()[1] == set()
    worker.nixl.answer_fence(0, WORD)
    _, received, errors, report = worker.results()
    assert (received, errors, report.failed) == ({"r"}, set(), [])
    assert worker.nixl.notices() == [("agent-0", b"src:1")]


def test_a_fenced_pull_is_received_with_errors_and_named(worker: WorkerHalf) -> None:
    worker.pull()
    worker.nixl.reads[0].state = "DONE"
    worker.results()
    worker.nixl.answer_fence(0, WORD + 1)
    _, received, errors, report = worker.results()
    assert (received, errors, report.failed) == ({"r"}, {1, 2, 3}, ["r"])
    assert [transfer.outcome for transfer in report.transfers] == ["fenced"]
    assert worker.nixl.notices() == []


def test_a_failed_rank_is_not_reported_while_another_still_writes(tmp_path: Path) -> None:
    worker = WorkerHalf(tmp_path, num_ranks=2)
    worker.pull()
    worker.nixl.reads[0].state = "ERR"
    for _ in range(2):
        assert worker.results()[1:3] == (set(), set())
    worker.nixl.reads[1].state = "ERR"
    assert worker.results()[1:3] == ({"r"}, {1, 2, 3})


def test_a_handle_that_can_not_be_released_keeps_its_request(worker: WorkerHalf) -> None:
    worker.pull()
    worker.nixl.reads[0].state = "ERR"
    worker.nixl.faults["release_xfer_handle"] = RuntimeError("still in use")
    assert worker.results()[1] == set()
    worker.nixl.faults.clear()
    assert worker.results()[1] == {"r"}


def test_a_peer_that_can_not_be_reached_fails_the_pull_and_not_the_worker(worker: WorkerHalf) -> None:
    worker.pull(engine="unknown-boot")
    worker.fail_handshake("r")
    _, received, errors, report = worker.results()
    assert (received, errors) == ({"r"}, {1, 2, 3})
    assert [(transfer.outcome, transfer.reason) for transfer in report.transfers] == [("failed", "handshake_failed")]


@pytest.mark.parametrize(
    ("call", "reason"), [("make_prepped_xfer", "prepare_failed"), ("transfer_data", "post_failed")]
)
def test_a_read_that_can_not_be_posted_names_its_cause(worker: WorkerHalf, call: str, reason: str) -> None:
    worker.nixl.faults[call] = RuntimeError("no route")
    worker.pull()
    _, received, errors, report = worker.results()
    assert (received, errors) == ({"r"}, {1, 2, 3})
    assert [transfer.reason for transfer in report.transfers] == [reason]


def test_a_source_that_is_not_read_is_told_if_it_is_connected(worker: WorkerHalf) -> None:
    meta = BackhaulMetadata()
    meta.declined_sources = [DeclinedSource(PEER, "src"), DeclinedSource("unknown-boot", "other")]
    worker.start(meta)
    assert worker.nixl.notices() == [("agent-0", b"src:1")]


@pytest.mark.parametrize("specs", [[SlidingWindowSpec()], [FullAttentionSpec(), FullAttentionSpec()]])
def test_a_cache_of_which_a_failed_receive_could_not_be_told_is_recomputed(tmp_path: Path, specs: list[Any]) -> None:
    for is_prefill in (True, False):
        half = SchedulerHalf(tmp_path, *specs, is_prefill=is_prefill)
        params = leg_params(an_envelope(leg=half.half.role), an_offer_for(half, PROMPT[:16]))
        params.update(do_remote_decode=is_prefill, do_remote_prefill=not is_prefill)
        request = a_running_request(PROMPT, params)
        assert half.allocate(request, Blocks(range(30, 34))) == 0
        assert half.half.legs["req-1"].decision is Decision.UNSUPPORTED
        assert half.step().reqs_to_recv == {}
        half.close()


# ---------------------------------------------------------------- a failed receive, in the scheduler


def test_a_receive_is_always_one_that_is_waited_for(prefill: SchedulerHalf) -> None:
    _, meta = a_pull(prefill)
    assert [(key, receive.awaiting_kvs) for key, receive in meta.reqs_to_recv.items()] == [("req-1", True)]


def test_a_failed_receive_recomputes_from_zero(prefill: SchedulerHalf) -> None:
    request, _ = a_pull(prefill)
    prefill.facade.update_connector_output(output(kv_connector_worker_meta=WorkerReport(failed=["req-1"])))
    assert request.num_computed_tokens == 16, "another rank may still read"
    done = output(finished_recving={"req-1"})
    prefill.facade.update_connector_output(done)
    assert request.num_computed_tokens == 0
    assert done.failed_recving == {"req-1"}


def test_a_receive_that_ended_well_keeps_what_it_brought(prefill: SchedulerHalf) -> None:
    request, _ = a_pull(prefill)
    done = output(finished_recving={"req-1"})
    prefill.facade.update_connector_output(done)
    assert (request.num_computed_tokens, done.failed_recving) == (16, set())


def test_blocks_of_a_late_read_are_held_until_it_has_ended(prefill: SchedulerHalf) -> None:
    a_pull(prefill)
    late = WorkerReport(failed=["req-1"], quarantined=["req-1"])
    prefill.facade.update_connector_output(output(finished_recving={"req-1"}, kv_connector_worker_meta=late))
    assert prefill.pool.touched == [30, 31, 32, 33]
    prefill.facade.update_connector_output(output(kv_connector_worker_meta=WorkerReport(ended=["req-1"])))
    assert sorted(prefill.pool.freed) == [30, 31, 32, 33]
