"""A reset of the prefix cache is answered with what vLLM's own block pool did.

Field report 25 (vllm-project/vllm#41180): handed-off blocks that nobody collected made a reset fail for as long as the
engine stayed idle, and its caller was told "done".
"""

import queue
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.engine import EngineCoreRequestType

from connector.engine import cache_reset
from connector.protocol import CommandDone, LeaseEnded, LeaseState, ResetCache
from tests.connector.engine.builders import an_envelope
from tests.contract.scheduler_bench import AS_DECODE, SchedulerBench

HISTORY = list(range(100, 112))


class CacheManager:
    """vLLM's own block pool of ten blocks; how often a reset was tried."""

    def __init__(self) -> None:
        self.block_pool = BlockPool(num_gpu_blocks=10, enable_caching=True, hash_block_size=4)
        self.num_tries = 0

    def reset_prefix_cache(self) -> bool:
        self.num_tries += 1
        return self.block_pool.reset_prefix_cache()

    def take(self, count: int) -> list[KVCacheBlock]:
        blocks: list[KVCacheBlock] = self.block_pool.get_new_blocks(count)
        return blocks


@pytest.fixture(params=[True, False], ids=["prefill", "decode"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> SchedulerBench:
    return SchedulerBench(tmp_path, is_prefill=request.param)


@pytest.fixture
def cache(bench: SchedulerBench) -> CacheManager:
    cache = CacheManager()
    bench.scheduler.cache_reset.bind(cache)
    return cache


def ask(bench: SchedulerBench, **changes: Any) -> None:
    bench.scheduler.cache_reset.ask(ResetCache(command_id="c1", **changes))


def answers(bench: SchedulerBench) -> list[tuple[str, str]]:
    return [(done.outcome, done.detail) for done in bench.messages(CommandDone)]


def hold_lease(bench: SchedulerBench) -> None:
    """A handoff on P, a session lease on D."""
    is_prefill = bench.options.is_prefill
    envelope = an_envelope() if is_prefill else an_envelope(leg=bench.scheduler.role)
    request = bench.arrive(HISTORY, envelope, **({} if is_prefill else AS_DECODE))
    bench.allocate(request)
    assert bench.finish(request)[0]


def test_an_engine_that_holds_nothing_is_reset_in_its_next_step(bench: SchedulerBench, cache: CacheManager) -> None:
    ask(bench)
    assert bench.scheduler.has_pending_push_work(), "the core has to go on stepping until there is an answer"
    assert answers(bench) == []
    bench.orders()
    assert answers(bench) == [("reset", "0 leases released")]
    assert not bench.scheduler.has_pending_push_work()
    bench.orders()
    assert (cache.num_tries, len(answers(bench))) == (1, 1)


def test_leases_are_released_first_and_told(bench: SchedulerBench, cache: CacheManager) -> None:
    hold_lease(bench)
    bench.orders()
    blocks = cache.take(3)
    ask(bench)
    assert bench.orders().releases == ["req-1"]
    assert answers(bench) == []
    assert bench.scheduler.has_pending_push_work()
    bench.results(finished_sending={"req-1"})
    cache.block_pool.free_blocks(blocks)
    bench.orders()
    assert answers(bench) == [("reset", "1 leases released")]
    ended = bench.events(LeaseEnded)
    if not bench.options.is_prefill:
        assert [(end.state, end.reason) for end in ended] == [(LeaseState.RELEASED, "cache_reset")]


def test_a_running_request_makes_it_wait_and_then_fail_with_the_reason(
    bench: SchedulerBench, cache: CacheManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.take(4)
    bench.arrive_raw(HISTORY, None, "running")
    ask(bench, patience_seconds=3.0)
    for _ in range(5):
        bench.orders()
    assert (answers(bench), cache.num_tries) == ([], 0), "vLLM logs a warning at each try that must fail"
    late = time.monotonic() + 4
    monkeypatch.setattr(cache_reset, "time", SimpleNamespace(monotonic=lambda: late))
    bench.orders()
    ((outcome, detail),) = answers(bench)
    assert outcome == "failed"
    assert detail == "4 KV blocks are still in use, by 1 unfinished requests, 0 leases and 0 late reads"
    assert not bench.scheduler.has_pending_push_work()


def test_blocks_that_come_free_in_time_are_waited_for(bench: SchedulerBench, cache: CacheManager) -> None:
    blocks = cache.take(4)
    ask(bench)
    bench.orders()
    cache.block_pool.free_blocks(blocks)
    bench.orders()
    assert answers(bench) == [("reset", "0 leases released")]


def test_a_late_read_is_never_reset_away(
    bench: SchedulerBench, cache: CacheManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its blocks would be handed out again while something still writes to them."""
    monkeypatch.setattr(type(bench.scheduler.quarantine), "__len__", lambda _self: 2)
    ask(bench)
    bench.orders()
    assert (answers(bench), cache.num_tries) == ([], 0)


def test_an_idle_core_is_woken_by_vllms_own_message(bench: SchedulerBench, cache: CacheManager) -> None:
    core = SimpleNamespace(input_queue=queue.Queue(), _process_input_queue=lambda: None)

    def run_busy_loop(self: Any) -> None:
        bench.arrive_raw(HISTORY, None, "first")

    run_busy_loop(core)
    ask(bench)
    assert core.input_queue.get_nowait() == (EngineCoreRequestType.WAKEUP, None)


def test_more_resets_than_can_wait_are_refused(bench: SchedulerBench, cache: CacheManager) -> None:
    cache.take(1)
    for _ in range(cache_reset.MAX_PENDING + 1):
        ask(bench)
    assert answers(bench) == [("failed", f"{cache_reset.MAX_PENDING} resets are pending already")]


def test_a_fault_in_the_reset_harms_no_step(bench: SchedulerBench, cache: CacheManager) -> None:
    ask(bench)
    cache.block_pool = None  # type: ignore[assignment]
    assert bench.orders() is not None
