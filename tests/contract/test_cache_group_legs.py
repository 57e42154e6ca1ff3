"""Legs of models with several cache groups, through vLLM's own scheduler and worker halves."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus

from connector.engine.metadata import BackhaulMetadata, FenceTarget, WorkerReport
from connector.engine.offers import KvOffer
from connector.protocol import Decision, LeaseOffer, Role
from tests.connector.engine.builders import BLOCK_SIZE, FLEET_KEY, an_envelope
from tests.connector.engine.requests import leg_params
from tests.contract import scheduler_bench
from tests.contract.scheduler_bench import AS_DECODE, SchedulerBench
from tests.contract.worker_bench import GENERATION, PEER, WorkerBench

ATTENTION: dict[str, Any] = {"block_size": BLOCK_SIZE, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
FULL = FullAttentionSpec(**ATTENTION)
WINDOW = SlidingWindowSpec(sliding_window=8, **ATTENTION)
STATE = MambaSpec(block_size=BLOCK_SIZE, shapes=((1, 8),), dtypes=(torch.float32,))
CHUNKED = ChunkedLocalAttentionSpec(attention_chunk_size=8, **ATTENTION)
NULL = 0


@pytest.fixture
def bench_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a scheduler half of a model with these groups."""

    def make(*specs: KVCacheSpec, is_prefill: bool) -> SchedulerBench:
        groups = [KVCacheGroupSpec([f"layer-{index}"], spec) for index, spec in enumerate(specs)]
        cache = KVCacheConfig(num_blocks=50, kv_cache_tensors=[], kv_cache_groups=groups)
        config = scheduler_bench.a_config()
        config.scheduler_config.disable_hybrid_kv_cache_manager = False
        monkeypatch.setattr(scheduler_bench, "a_cache_config", lambda: cache)
        monkeypatch.setattr(scheduler_bench, "a_config", lambda: config)
        folder = tmp_path / ("p" if is_prefill else "d")
        folder.mkdir()
        return SchedulerBench(folder, is_prefill=is_prefill)

    return make


def allocated(bench: SchedulerBench, request: Request, *groups: list[int]) -> int:
    """vLLM schedules the request into these blocks; returns how many tokens it waits for."""
    num_external, _ = bench.scheduler.get_num_new_matched_tokens(request, 0)
    bench.cache.blocks_of[request.request_id] = blocks_of(*groups)
    bench.scheduler.update_state_after_alloc(request, bench.cache.blocks_of[request.request_id], num_external)
    return num_external


def a_block(block_id: int) -> KVCacheBlock:
    block = KVCacheBlock(block_id)
    block.is_null = block_id == NULL
    return block


def blocks_of(*groups: list[int]) -> KVCacheBlocks:
    return KVCacheBlocks(tuple([a_block(block_id) for block_id in group] for group in groups))


def ended(bench: SchedulerBench, request: Request, *groups: list[int]) -> tuple[bool, dict[str, Any] | None]:
    request.append_output_token_ids([60])
    request.num_computed_tokens = request.num_tokens - 1
    request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    return bench.scheduler.request_finished(request, groups)


def handoff(bench: SchedulerBench, num_tokens: int, *groups: list[int]) -> KvOffer:
    """P's offer after a prompt of that many tokens."""
    request = bench.arrive(range(num_tokens), an_envelope(leg=Role.PREFILL))
    allocated(bench, request, *groups)
    is_kept, answer = ended(bench, request, *groups)
    assert is_kept
    assert answer is not None
    return FLEET_KEY.verify("offer", answer["backhaul"]["offer"], KvOffer)


def test_the_last_token_of_a_windowed_prompt_is_left_to_decode(bench_of: Any) -> None:
    prefill = bench_of(FULL, WINDOW, is_prefill=True)
    assert prefill.arrive(range(12), an_envelope(leg=Role.PREFILL)).num_prompt_tokens == 11
    of_stock_reader = prefill.arrive_raw(range(12), leg_params(None), "req-2")
    assert of_stock_reader.num_prompt_tokens == 12  # it expects them all
    plain = bench_of(FULL, is_prefill=False)
    assert plain.arrive(range(12), an_envelope(leg=Role.DECODE), **AS_DECODE).num_prompt_tokens == 12


def test_full_attention_hands_over_every_token(bench_of: Any) -> None:
    plain = bench_of(FULL, is_prefill=True)
    assert plain.arrive(range(12), an_envelope(leg=Role.PREFILL)).num_prompt_tokens == 12


def test_decode_takes_the_window_that_prefill_still_holds(bench_of: Any) -> None:
    """Of 11 tokens a window of 8 keeps those from 4 on; vLLM pairs the ends of both lists."""
    offer = handoff(bench_of(FULL, WINDOW, is_prefill=True), 12, [40, 41, 42], [NULL, 43, 44])
    assert offer.num_tokens == 11
    assert offer.block_ids == ((40, 41, 42), (43, 44))
    decode = bench_of(FULL, WINDOW, is_prefill=False)
    request = decode.arrive(range(12), an_envelope(leg=Role.DECODE), offer, **AS_DECODE)
    assert allocated(decode, request, [30, 31, 32], [NULL, 33, 34]) == 11
    wanted = decode.metadata().reqs_to_recv["req-1"]
    assert [list(group) for group in wanted.local_block_ids] == [[30, 31, 32], [33, 34]]
    assert wanted.remote.block_ids == [[40, 41, 42], [43, 44]]


def test_an_offer_names_no_placeholder_and_a_lease_counts_none(bench_of: Any) -> None:
    decode = bench_of(FULL, WINDOW, is_prefill=False)
    request = decode.arrive(range(16), an_envelope(leg=Role.DECODE), **AS_DECODE)
    allocated(decode, request, [30, 31, 32, 33], [NULL, 34, 35, 36])
    assert ended(decode, request, [30, 31, 32, 33], [NULL, NULL, 35, 36]) == (True, None)
    (granted,) = decode.messages(LeaseOffer)
    assert granted.lease.num_blocks == 6
    assert FLEET_KEY.verify("offer", granted.offer, KvOffer).block_ids == ((30, 31, 32, 33), (35, 36))


@pytest.mark.parametrize("spec", [STATE, CHUNKED])
def test_decode_holds_nothing_that_prefill_could_not_read(bench_of: Any, spec: KVCacheSpec) -> None:
    decode = bench_of(FULL, spec, is_prefill=False)
    request = decode.arrive(range(16), an_envelope(leg=Role.DECODE), **AS_DECODE)
    allocated(decode, request, [30, 31, 32, 33], [34])
    assert ended(decode, request, [30, 31, 32, 33], [34]) == (False, None)
    assert decode.messages(LeaseOffer) == []


def test_both_legs_of_an_unknown_kind_say_so(bench_of: Any) -> None:
    prefill = bench_of(FULL, CHUNKED, is_prefill=True)
    request = prefill.arrive(range(16), an_envelope(leg=Role.PREFILL))
    assert allocated(prefill, request, [40, 41, 42, 43], [44, 45, 46, 47]) == 0
    assert ended(prefill, request, [40, 41, 42, 43], [44, 45, 46, 47]) == (False, None)
    assert prefill.decided().decision is Decision.UNSUPPORTED
    decode = bench_of(FULL, CHUNKED, is_prefill=False)
    request = decode.arrive(range(16), an_envelope(leg=Role.DECODE), **AS_DECODE)
    assert allocated(decode, request, [30, 31, 32, 33], [34, 35, 36, 37]) == 0
    assert decode.decided().decision is Decision.UNSUPPORTED


@pytest.mark.parametrize("change", [{"prompt_embeds": torch.zeros(16, 8)}, {"resumable": True}])
def test_a_request_that_digests_cannot_tell_leaves_no_lease(bench_of: Any, change: dict[str, Any]) -> None:
    decode = bench_of(FULL, is_prefill=False)
    request = decode.arrive(range(16), an_envelope(leg=Role.DECODE), **AS_DECODE)
    for field, value in change.items():
        setattr(request, field, value)
    allocated(decode, request, [30, 31, 32, 33])
    assert ended(decode, request, [30, 31, 32, 33]) == (False, None)
    assert decode.messages(LeaseOffer) == []


def test_a_recurrent_state_is_handed_over_as_it_stands_before_the_last_token(bench_of: Any) -> None:
    offer = handoff(bench_of(FULL, STATE, is_prefill=True), 12, [40, 41, 42], [43])
    assert offer.num_tokens == 11
    decode = bench_of(FULL, STATE, is_prefill=False)
    request = decode.arrive(range(12), an_envelope(leg=Role.DECODE), offer, **AS_DECODE)
    assert allocated(decode, request, [30, 31, 32], [33]) == 11
    other = decode.arrive([*range(11), 99, 98], an_envelope(leg=Role.DECODE), offer, **AS_DECODE)
    assert decode.scheduler.get_num_new_matched_tokens(other, 0) == (11, True)
    shorter = decode.arrive(range(11), an_envelope(leg=Role.DECODE), offer, **AS_DECODE)
    assert decode.scheduler.get_num_new_matched_tokens(shorter, 0) == (0, False)


# ---------------------------------------------------------------- failures


def test_a_late_pull_quarantines_the_blocks_of_every_group(bench_of: Any) -> None:
    decode = bench_of(FULL, WINDOW, is_prefill=False)
    decode.cache.blocks_of["req-1"] = blocks_of([1, 2, 3], [NULL, 4, 5])
    decode.results(WorkerReport(quarantined=["req-1"]), failed_recving={"req-1"}, finished_recving=set())
    assert sorted(decode.cache.touched) == [1, 2, 3, 4, 5]
    decode.results(WorkerReport(ended=["req-1"]))
    assert sorted(decode.cache.freed) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("num_groups", [1, 2])
def test_a_failed_pull_is_told_by_its_blocks_only_where_there_is_one_group(
    monkeypatch: pytest.MonkeyPatch, num_groups: int
) -> None:
    """vLLM's worker tells them whenever all groups have full attention, and its core dies of it with several."""
    bench = WorkerBench(monkeypatch)
    groups = [None] * num_groups
    bench.worker.kv_cache_config = SimpleNamespace(kv_cache_groups=groups, transfer_groups=groups)
    bench.worker.tp_mappings[PEER].source_ranks_per_group = [(0,)] * num_groups
    metadata = BackhaulMetadata()
    metadata.add_new_req_to_recv(
        request_id="r",
        local_block_ids=([1, 2, 3], [4, 5, 6])[:num_groups],
        kv_transfer_params={
            "remote_engine_id": PEER,
            "remote_request_id": "src",
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "remote_block_ids": [[7, 8, 9], [10, 11, 12]][:num_groups],
            "remote_num_tokens": 96,
            "tp_size": 1,
        },
        local_num_computed_blocks=(0,) * num_groups,
        awaiting_kvs=True,
    )
    bench.step(metadata, fence_targets={"r": FenceTarget(bench.addresses, GENERATION)})
    bench.nixl.reads[0].state = "ERR"
    assert bench.step().failed_recving == {"r"}
    assert bench.worker.get_block_ids_with_load_errors() == ({1, 2, 3} if num_groups == 1 else set())
