"""What decode keeps of a finished request, on vLLM's own scheduler half: a lease by the policy of now, or nothing."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from vllm.v1.request import Request, RequestStatus

from connector.engine import fence, guards
from connector.engine.matcher import LegMatcher
from connector.engine.metadata import WorkerReport
from connector.engine.offers import FenceWord, KvOffer
from connector.protocol import (
    LeaseEnded,
    LeaseOffer,
    LeaseState,
    PolicyPatch,
    Role,
)
from tests.connector.engine.builders import FLEET_KEY, an_envelope
from tests.contract.scheduler_bench import AS_DECODE, FENCE_ADDRESS, SchedulerBench, offered_by
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


def on_decode(decode: SchedulerBench, **envelope: Any) -> Request:
    request = decode.arrive(HISTORY, an_envelope(leg=Role.DECODE, **envelope), **AS_DECODE)
    decode.allocate(request)
    decode.orders()
    return request


def test_decode_leases_what_it_computed_and_publishes_it_beside_the_answer(decode: SchedulerBench) -> None:
    request = on_decode(decode, chain=("c1",))
    is_kept, answer = decode.finish(request, reply=[60, 61, 62])
    assert (is_kept, answer) == (True, None)
    (message,) = decode.messages(LeaseOffer)
    assert (message.lease.num_tokens, message.lease.num_blocks, message.chain) == (14, 4, ("c1",))
    assert message.lease.num_bytes == 4 * 2 * 2 * BLOCK_BYTES
    offer = FLEET_KEY.verify("offer", message.offer, KvOffer)
    held = decode.scheduler.control.table.find("req-1")
    assert held is not None
    slot, generation = held.slot, held.generation
    assert offer.fence_words == (FenceWord(0, FENCE_ADDRESS + 8 * slot),)
    assert offer.fence_generation == generation
    metadata = decode.metadata()
    assert list(metadata.reqs_to_send) == metadata.orders.kept_requests == ["req-1"]


BLOCK_BYTES = 4 * 8 * 4
"""Of one layer's keys: tokens of a block, head size, bytes of a float."""


def test_tokens_without_kv_are_never_offered(decode: SchedulerBench) -> None:
    """With speculative or asynchronous scheduling ``num_computed_tokens`` may run ahead of the tokens."""
    request = on_decode(decode)
    request.append_output_token_ids([60, 61])
    request.num_computed_tokens = 20
    request.status = RequestStatus.FINISHED_STOPPED
    assert decode.scheduler.request_finished(request, ([40, 41, 42, 43],))[0]
    assert decode.messages(LeaseOffer)[0].lease.num_tokens == 13


def test_a_ttl_that_changed_while_the_request_ran_is_the_leases(decode: SchedulerBench) -> None:
    request = on_decode(decode)
    decode.scheduler.live_policy.set(1, structs.replace(decode.options.policy, decoder_kv_blocks_ttl=60))
    decode.orders()
    decode.finish(request)
    assert decode.messages(LeaseOffer)[0].lease.remaining_seconds == pytest.approx(60, abs=5)


def test_a_lease_that_ended_gives_back_its_slot_and_is_told(decode: SchedulerBench) -> None:
    decode.finish(on_decode(decode))
    decode.results(WorkerReport(expired=["req-1"], reads=["req-1"]), finished_sending={"req-1"})
    (ended,) = decode.events(LeaseEnded)
    assert (ended.state, ended.reason, ended.num_reads) == (LeaseState.EXPIRED, "ttl", 1)
    assert decode.leftovers() == []


def finish_aborted(bench: SchedulerBench) -> None:
    bench.finish(on_decode(bench), status=RequestStatus.FINISHED_ABORTED)


def finish_without_ttl(bench: SchedulerBench) -> None:
    bench.scheduler.live_policy.set(1, structs.replace(bench.options.policy, decoder_kv_blocks_ttl=0))
    bench.finish(on_decode(bench))


def finish_without_reuse(bench: SchedulerBench) -> None:
    bench.scheduler.live_policy.set(1, structs.replace(bench.options.policy, bidirectional_kv_xfer=False))
    bench.finish(on_decode(bench))


def finish_after_the_ttl_became_zero(bench: SchedulerBench) -> None:
    request = on_decode(bench)
    bench.scheduler.live_policy.set(1, structs.replace(bench.options.policy, decoder_kv_blocks_ttl=0))
    bench.finish(request)


def finish_after_reuse_was_turned_off(bench: SchedulerBench) -> None:
    request = on_decode(bench)
    bench.scheduler.live_policy.set(1, structs.replace(bench.options.policy, bidirectional_kv_xfer=False))
    bench.orders()
    bench.finish(request)


def finish_against_its_sessions_policy(bench: SchedulerBench) -> None:
    bench.finish(on_decode(bench, policy=PolicyPatch(decoder_kv_blocks_ttl=0)))


def finish_before_the_handshake_is_up(bench: SchedulerBench) -> None:
    bench.scheduler.factory.fence_address_of_rank.clear()
    bench.finish(on_decode(bench))


def finish_without_an_envelope(bench: SchedulerBench) -> None:
    request = bench.arrive(HISTORY, None, **AS_DECODE)
    bench.allocate(request)
    bench.finish(request)


@pytest.mark.parametrize(
    "finish",
    [
        finish_aborted,
        finish_without_ttl,
        finish_without_reuse,
        finish_after_the_ttl_became_zero,
        finish_after_reuse_was_turned_off,
        finish_against_its_sessions_policy,
        finish_before_the_handshake_is_up,
        finish_without_an_envelope,
    ],
)
def test_without_a_lease_decode_keeps_no_blocks_and_drops_the_word(decode: SchedulerBench, finish: Any) -> None:
    finish(decode)
    metadata = decode.metadata()
    assert (metadata.reqs_to_send, metadata.orders.kept_requests) == ({}, [])
    assert metadata.reqs_not_processed == {"req-1"}
    assert metadata.orders.dropped_words == ([] if finish is finish_without_an_envelope else ["req-1"])
    assert decode.messages(LeaseOffer) == []
    assert decode.leftovers() == []


def test_without_a_free_fence_slot_there_is_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "NUM_LEASE_WORDS", 0)
    decode = SchedulerBench(tmp_path, is_prefill=False)
    assert decode.finish(on_decode(decode)) == (False, None)
    assert decode.leftovers() == []


def test_an_exception_at_the_end_means_no_lease(decode: SchedulerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    request = on_decode(decode)
    monkeypatch.setattr(LegMatcher, "digest", explode)
    assert decode.finish(request) == (False, None)
    assert guards.num_contained["request_finished"] == 1
    assert decode.leftovers() == []


# ---------------------------------------------------------------- never scheduled


def test_a_request_aborted_in_the_queue_lets_prefill_free(prefill: SchedulerBench, decode: SchedulerBench) -> None:
    request = decode.arrive(HISTORY, an_envelope(leg=Role.DECODE), offered_by(prefill, HISTORY), **AS_DECODE)
    assert decode.finish(request, status=RequestStatus.FINISHED_ABORTED) == (False, None)
    received = decode.metadata().reqs_to_recv["req-1"]
    assert (received.local_block_ids, received.awaiting_kvs) == ([], False)
    assert decode.leftovers() == []


def test_a_request_aborted_in_the_queue_without_an_offer_notifies_nobody(decode: SchedulerBench) -> None:
    request = decode.arrive(HISTORY, an_envelope(leg=Role.DECODE), **AS_DECODE)
    assert decode.finish(request, status=RequestStatus.FINISHED_ABORTED) == (False, None)
    assert decode.metadata().reqs_to_recv == {}
    assert decode.leftovers() == []
