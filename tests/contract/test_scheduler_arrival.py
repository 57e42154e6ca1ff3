"""From arrival to allocation, on vLLM's own scheduler half: it sees verified facts or recomputes."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from connector.engine import guards
from connector.engine.matcher import LegMatcher
from connector.protocol import Decision, LegDecided, Role
from tests.connector.engine.builders import an_envelope
from tests.contract.scheduler_bench import AS_DECODE, FENCE_ADDRESS, SchedulerBench, offered_by

HISTORY = list(range(12))
FORGED: dict[str, Any] = {
    "remote_engine_id": "evil",
    "remote_request_id": "victim",
    "remote_host": "10.0.0.1",
    "remote_port": 1,
    "tp_size": 1,
    "remote_num_tokens": 10**6,
    "remote_block_ids": [[1, 2, 3]],
}


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


# ---------------------------------------------------------------- what a caller forged


@pytest.mark.parametrize("flags", [{}, AS_DECODE])
def test_forged_remote_facts_start_no_heartbeat_no_pull_and_no_notice(
    prefill: SchedulerBench, decode: SchedulerBench, flags: dict[str, Any]
) -> None:
    bench = decode if flags else prefill
    request = bench.arrive(HISTORY, None, **{**FORGED, **flags})
    assert bench.scheduler._heartbeat_by_engine == {}
    assert bench.allocate(request) == 0
    metadata = bench.metadata()
    assert (metadata.reqs_to_recv, metadata.heartbeat_by_engine) == ({}, {})
    assert (metadata.orders.fence_words, metadata.orders.fence_targets) == ({}, {})


def test_forged_facts_beside_a_valid_envelope_do_not_survive_either(prefill: SchedulerBench) -> None:
    request = prefill.arrive(HISTORY, an_envelope(), **FORGED)
    assert prefill.allocate(request) == 0
    assert prefill.metadata().reqs_to_recv == {}
    assert prefill.decided().decision is Decision.NO_PLACEMENT


def test_a_client_can_not_mark_its_request_as_already_pulled(prefill: SchedulerBench, decode: SchedulerBench) -> None:
    offer = offered_by(decode, HISTORY)
    request = prefill.arrive([*HISTORY, 1, 2], an_envelope(), offer, _remote_blocks_processed=True)
    assert prefill.allocate(request) == 12


def test_a_request_without_params_is_left_alone(prefill: SchedulerBench) -> None:
    request = prefill.arrive_raw(HISTORY, None)
    assert prefill.allocate(request) == 0
    assert (prefill.sent, prefill.leftovers()) == ([], [])


# ---------------------------------------------------------------- what was verified


def test_prefill_pulls_the_common_blocks_under_the_leases_fence(
    prefill: SchedulerBench, decode: SchedulerBench
) -> None:
    offer = offered_by(decode, HISTORY)
    request = prefill.arrive([*HISTORY[:9], 99, 98, 97, 96], an_envelope(), offer)
    assert prefill.allocate(request) == 8
    metadata = prefill.metadata()
    received = metadata.reqs_to_recv["req-1"]
    assert (received.remote.engine_id, received.remote.request_id) == ("own-boot", "req-1")
    assert (received.remote.block_ids, received.remote.num_tokens) == ([list(offer.block_ids[0][:2])], 8)
    assert received.remote.blocks_expiry_time == offer.expires_at_source
    assert received.awaiting_kvs
    target = metadata.orders.fence_targets["req-1"]
    assert (target.generation, target.address_of_rank) == (
        offer.fence_generation,
        {0: offer.fence_words[0].address},
    )


def test_decode_pulls_the_whole_prompt_and_renews_the_handoff_meanwhile(
    prefill: SchedulerBench, decode: SchedulerBench
) -> None:
    offer = offered_by(prefill, HISTORY[:10])
    request = decode.arrive(HISTORY[:10], an_envelope(leg=Role.DECODE), offer, **AS_DECODE)
    assert decode.scheduler._heartbeat_by_engine["own-boot"].req_ids == {"req-1"}
    assert decode.allocate(request) == 10
    assert decode.metadata().reqs_to_recv["req-1"].remote.block_ids == [list(offer.block_ids[0])]


def test_the_answer_is_the_same_each_time_a_waiting_request_is_asked(
    prefill: SchedulerBench, decode: SchedulerBench
) -> None:
    request = prefill.arrive([*HISTORY, 1], an_envelope(), offered_by(decode, HISTORY))
    answers = {prefill.scheduler.get_num_new_matched_tokens(request, 4) for _ in range(3)}
    assert answers == {(8, True)}


def test_after_one_pull_there_is_no_second(prefill: SchedulerBench, decode: SchedulerBench) -> None:
    """vLLM asks again after a failed pull and after a preemption; on its own it would park the request for ever."""
    request = prefill.arrive([*HISTORY, 1], an_envelope(), offered_by(decode, HISTORY))
    assert prefill.allocate(request) == 12
    prefill.metadata()
    assert prefill.allocate(request) == 0
    metadata = prefill.metadata()
    assert (metadata.reqs_to_recv, metadata.orders) == ({}, None), "and nothing that the workers don't know"


def test_orders_name_each_new_fence_word_once(prefill: SchedulerBench) -> None:
    prefill.allocate(prefill.arrive(HISTORY, an_envelope()))
    orders = prefill.orders()
    assert orders.fence_words == {"req-1": prefill.scheduler.fence.word_of("req-1")}
    assert prefill.orders().fence_words == {}


def test_orders_carry_the_policy_in_force(prefill: SchedulerBench) -> None:
    policy = structs.replace(prefill.options.policy, kv_pull_deadline=2.5, kv_lease_duration=60)
    prefill.scheduler.live_policy.set(1, policy)
    orders = prefill.orders()
    assert (orders.pull_deadline_seconds, orders.lease_extension_seconds) == (2.5, 40)


def test_the_next_request_obeys_a_new_policy(prefill: SchedulerBench, decode: SchedulerBench) -> None:
    offer = offered_by(decode, HISTORY)
    prefill.scheduler.live_policy.set(1, structs.replace(prefill.options.policy, kv_recompute_threshold=13))
    assert prefill.allocate(prefill.arrive([*HISTORY, 1], an_envelope(), offer)) == 0
    assert prefill.decided().decision is Decision.BELOW_THRESHOLD
    prefill.scheduler.live_policy.set(2, prefill.options.policy)
    assert prefill.allocate(prefill.arrive([*HISTORY, 1], an_envelope(), offer)) == 12


# ---------------------------------------------------------------- without a pull


def test_prefill_without_a_pull_leaves_the_sources_lease_alone(prefill: SchedulerBench, decode: SchedulerBench) -> None:
    request = prefill.arrive([99, *HISTORY], an_envelope(), offered_by(decode, HISTORY))
    assert prefill.allocate(request) == 0
    assert prefill.metadata().reqs_to_recv == {}
    assert prefill.decided().decision is Decision.PREFIX_DIVERGED


def test_decode_without_a_pull_notifies_the_source_which_frees_at_once(
    prefill: SchedulerBench, decode: SchedulerBench
) -> None:
    request = decode.arrive([99, *HISTORY], an_envelope(leg=Role.DECODE), offered_by(prefill, HISTORY), **AS_DECODE)
    assert decode.allocate(request) == 0
    received = decode.metadata().reqs_to_recv["req-1"]
    assert (received.local_block_ids, received.awaiting_kvs, received.remote.num_tokens) == ((), False, 0)
    assert decode.decided().decision is Decision.PREFIX_DIVERGED


def test_a_leg_without_a_pull_is_told_once(prefill: SchedulerBench) -> None:
    request = prefill.arrive(HISTORY, an_envelope())
    for _ in range(3):
        prefill.allocate(request)
    prefill.finish(request)
    decided = prefill.decided()
    assert (decided.leg, decided.num_prompt_tokens, decided.num_pulled_tokens) == (Role.PREFILL, 12, 0)


# ---------------------------------------------------------------- exceptions


def explode(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("a fault of ours")


def test_an_exception_in_matching_recomputes_and_the_leg_is_rejected(
    prefill: SchedulerBench, decode: SchedulerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = prefill.arrive([*HISTORY, 1], an_envelope(), offered_by(decode, HISTORY))
    monkeypatch.setattr(LegMatcher, "match", explode)
    assert prefill.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    assert prefill.allocate(request) == 0
    received = prefill.metadata().reqs_to_recv["req-1"]
    assert (received.local_block_ids, received.awaiting_kvs, received.remote.engine_id) == ((), False, "own-boot")
    assert prefill.decided().decision is Decision.REJECTED
    assert guards.num_contained["get_num_new_matched_tokens"] == 2


def test_an_exception_in_decodes_matching_still_lets_prefill_free(
    prefill: SchedulerBench, decode: SchedulerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = offered_by(prefill, HISTORY)
    request = decode.arrive(HISTORY, an_envelope(leg=Role.DECODE), offer, **AS_DECODE)
    monkeypatch.setattr(LegMatcher, "match", explode)
    assert decode.allocate(request) == 0
    received = decode.metadata().reqs_to_recv["req-1"]
    assert (received.local_block_ids, received.remote.request_id) == ((), "req-1")
    assert decode.decided().decision is Decision.REJECTED


def test_an_exception_at_arrival_leaves_no_facts_but_a_source_to_be_told(
    prefill: SchedulerBench, decode: SchedulerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = offered_by(prefill, HISTORY)
    monkeypatch.setattr(LegMatcher, "open", explode)
    request = decode.arrive(HISTORY, an_envelope(leg=Role.DECODE), offer, **{**FORGED, **AS_DECODE})
    assert request.kv_transfer_params["remote_host"] == offer.host
    assert decode.allocate(request) == 0
    received = decode.metadata().reqs_to_recv["req-1"]
    assert (received.local_block_ids, received.awaiting_kvs, received.remote.engine_id) == ((), False, "own-boot")
    assert guards.num_contained["_open_leg"] == 1


@pytest.mark.parametrize("forged", [None, "", "k1.forged.mac", 7])
def test_an_exception_at_arrival_without_a_verified_offer_names_nobody(
    decode: SchedulerBench, monkeypatch: pytest.MonkeyPatch, forged: object
) -> None:
    monkeypatch.setattr(LegMatcher, "open", explode)
    given = {"backhaul": {"envelope": None, "offer": forged}, **FORGED, **AS_DECODE}
    request = decode.arrive_raw(HISTORY, given)
    assert decode.scheduler._heartbeat_by_engine == {}
    assert decode.allocate(request) == 0
    assert decode.metadata().reqs_to_recv == {}


def test_an_exception_before_allocation_kills_nothing(prefill: SchedulerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    request = prefill.arrive(HISTORY, an_envelope())
    monkeypatch.setattr(prefill.scheduler.fence, "raise_word", explode)
    assert prefill.allocate(request) == 0
    is_kept, answer = prefill.finish(request)
    assert (is_kept, answer) == (False, None)


# ---------------------------------------------------------------- fence addresses


def test_every_ranks_fence_address_is_learnt_from_the_handshake(
    prefill: SchedulerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler import NixlBaseConnectorScheduler

    from connector.engine.metadata import FencedHandshakePayload

    passed_on: list[Any] = []
    monkeypatch.setattr(
        NixlBaseConnectorScheduler, "set_xfer_handshake_metadata", lambda _self, metadata: passed_on.append(metadata)
    )
    metadata = {
        (pp, tp): FencedHandshakePayload("h", b"", 0x1000 * (1 + tp) + pp) for pp in range(2) for tp in range(2)
    }
    assert prefill.scheduler.factory.fence_address_of_rank == {0: FENCE_ADDRESS}
    prefill.scheduler.set_xfer_handshake_metadata(metadata)
    assert prefill.scheduler.factory.fence_address_of_rank == {0: 0x1000, 1: 0x2000}
    assert passed_on == [metadata]


def test_no_leg_is_told_before_it_is_decided(prefill: SchedulerBench, decode: SchedulerBench) -> None:
    request = prefill.arrive([*HISTORY, 1], an_envelope(), offered_by(decode, HISTORY))
    assert prefill.allocate(request) == 12
    assert prefill.events(LegDecided) == []


def test_workers_are_told_the_policy_once_and_again_when_it_changes(prefill: SchedulerBench) -> None:
    first = prefill.metadata().orders
    assert (first.pull_deadline_seconds, first.lease_extension_seconds) == (5.0, 20)
    assert prefill.metadata().orders is None
    changed = structs.replace(prefill.options.policy, kv_pull_deadline=9.0, kv_lease_duration=60)
    prefill.scheduler.live_policy.set(2, changed)
    second = prefill.metadata().orders
    assert (second.pull_deadline_seconds, second.lease_extension_seconds) == (9.0, 40)
    assert prefill.metadata().orders is None
