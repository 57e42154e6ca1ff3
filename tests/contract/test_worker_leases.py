"""Leases on the worker, through vLLM's own code: the word falls before the blocks are told free, and never earlier."""

import threading
from typing import Any

import pytest
from msgspec import structs
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import pull_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlHandshakePayload

from connector.engine.fence import FenceMemory
from connector.engine.metadata import BackhaulMetadata, FencedHandshakePayload
from connector.engine.nixl_agent import READ_AHEAD_NOTICE, FencedNixlAgent
from connector.engine.worker import BackhaulWorker
from tests.contract.worker_bench import GENERATION, OPTIONS, WorkerBench

WAIT_SECONDS = 10.0


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> WorkerBench:
    return WorkerBench(monkeypatch)


# ---------------------------------------------------------------- words


def test_the_word_is_up_while_the_blocks_are_held(bench: WorkerBench) -> None:
    bench.hold()
    assert bench.word() == GENERATION
    bench.receive(b"r:1")
    assert bench.step().finished_sending == set()
    bench.clock.now += 59
    assert bench.step().finished_sending == set()
    assert bench.word() == GENERATION


def expire(bench: WorkerBench) -> Any:
    bench.clock.now += 61
    return bench.step()


def release(bench: WorkerBench) -> Any:
    return bench.step(releases=["r"])


def read_once(bench: WorkerBench) -> Any:
    bench.receive(b"r:1")
    return bench.step(unkept_requests=["r"])


@pytest.mark.parametrize("end", [expire, release, read_once])
def test_the_word_is_down_when_vllm_learns_that_the_blocks_are_free(bench: WorkerBench, end: Any) -> None:
    bench.hold()
    results = end(bench)
    assert (results.finished_sending, bench.word()) == ({"r"}, 0)


@pytest.mark.parametrize("end", [expire, release, read_once])
def test_the_word_falls_before_the_results_are_handed_out(
    bench: WorkerBench, end: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler in another process may act on the results at once."""
    order: list[str] = []
    real_drop, real_results = FenceMemory.drop_word, bench.worker.get_transfer_results

    def drop_word(memory: FenceMemory, request_id: str) -> None:
        order.append(f"drop {request_id}")
        real_drop(memory, request_id)

    def get_transfer_results() -> Any:
        results = real_results()
        order.append("results")
        return results

    monkeypatch.setattr(FenceMemory, "drop_word", drop_word)
    monkeypatch.setattr(bench.worker, "get_transfer_results", get_transfer_results)
    bench.hold()
    order.clear()
    end(bench)
    assert order == ["drop r", "results"]


def test_words_are_dropped_before_others_are_raised_in_their_slots(bench: WorkerBench) -> None:
    bench.hold("old", slot=3)
    bench.begin(dropped_words=["old"], fence_words={"new": (3, 99)})
    assert bench.word(3) == 99


# ---------------------------------------------------------------- how a lease ends


def test_an_expiry_is_told_and_counted_as_one(bench: WorkerBench) -> None:
    bench.hold()
    expire(bench)
    assert bench.report().expired == ["r"]
    assert bench.stats.data["num_kv_expired_reqs"] == [1]


def test_a_release_is_neither_told_nor_counted_as_an_expiry(bench: WorkerBench) -> None:
    bench.hold()
    release(bench)
    assert bench.worker.take_report() is None
    assert bench.stats.data["num_kv_expired_reqs"] == []


def test_a_release_is_obeyed_once(bench: WorkerBench) -> None:
    bench.hold()
    assert release(bench).finished_sending == {"r"}
    assert release(bench).finished_sending == set()
    assert bench.step(releases=["never-held"]).finished_sending == set()


def test_a_release_in_the_step_of_the_grant_is_obeyed(bench: WorkerBench) -> None:
    metadata = BackhaulMetadata()
    metadata.reqs_in_batch = {"r"}
    metadata.reqs_to_send = {"r": bench.clock.now + 60}
    results = bench.step(metadata, fence_words={"r": (3, 1)}, kept_requests=["r"], releases=["r"])
    assert (results.finished_sending, bench.word()) == ({"r"}, 0)


def test_a_release_that_meets_the_expiry_is_told_once(bench: WorkerBench) -> None:
    bench.hold()
    bench.clock.now += 61
    assert release(bench).finished_sending == {"r"}
    assert bench.step().finished_sending == set()
    assert bench.worker.take_report() is None


def test_nothing_of_an_ended_lease_is_left_behind(bench: WorkerBench) -> None:
    bench.hold()
    bench.receive(b"r:2")  # one of two consumers
    bench.step(unkept_requests=["r"])
    release(bench)
    worker = bench.worker
    for place in (
        worker._reqs_to_send,
        worker._reqs_to_process,
        worker._leases,
        worker.consumer_notification_counts_by_req,
        worker.expected_consumer_notifications_by_req,
    ):
        assert "r" not in place


# ---------------------------------------------------------------- reads


def test_a_kept_lease_survives_any_number_of_reads_and_counts_them(bench: WorkerBench) -> None:
    bench.hold()
    for _ in range(3):
        bench.receive(b"r:1", b"r:1")
        assert bench.step().finished_sending == set()
    assert bench.report().reads == ["r"] * 6
    assert expire(bench).finished_sending == {"r"}
    assert bench.report().expired == ["r"]


def test_a_handoff_ends_with_its_read(bench: WorkerBench) -> None:
    bench.hold(kept=False)
    bench.receive(b"r:1")
    assert bench.step().finished_sending == {"r"}
    report = bench.report()
    assert (report.reads, report.expired) == (["r"], [])


def test_a_handoff_for_two_readers_waits_for_both(bench: WorkerBench) -> None:
    bench.hold(kept=False)
    bench.receive(b"r:2")
    assert bench.step().finished_sending == set()
    assert bench.word() == GENERATION
    bench.receive(b"r:2")
    assert bench.step().finished_sending == {"r"}
    assert bench.report().expired == []


def test_a_lease_that_is_no_longer_kept_ends_with_its_next_read(bench: WorkerBench) -> None:
    bench.hold()
    bench.receive(b"r:1")
    assert bench.step(unkept_requests=["r"]).finished_sending == {"r"}
    report = bench.report()
    assert (report.reads, report.expired) == (["r"], [])


# ---------------------------------------------------------------- deadlines


def test_an_extended_lease_lives_to_its_new_deadline(bench: WorkerBench) -> None:
    bench.hold(ttl=9)
    bench.step(deadlines={"r": 20.0})
    bench.clock.now += 11
    assert bench.step().finished_sending == set()
    bench.clock.now += 10
    assert bench.step().finished_sending == {"r"}


def test_a_shortened_lease_ends_at_its_new_deadline(bench: WorkerBench) -> None:
    bench.hold(ttl=480)
    bench.step(deadlines={"r": 5.0})
    bench.clock.now += 6
    assert bench.step().finished_sending == {"r"}


def test_a_deadline_for_what_is_not_held_revives_nothing(bench: WorkerBench) -> None:
    bench.step(deadlines={"gone": 60.0})
    assert bench.worker._reqs_to_send == {}


def test_heartbeats_renew_a_handoff_by_the_policys_duration(bench: WorkerBench) -> None:
    bench.hold(kept=False, ttl=30)
    bench.clock.now += 25
    bench.receive(b"HB:r")
    bench.step(lease_extension_seconds=40)
    bench.clock.now += 30
    assert bench.step().finished_sending == set()
    bench.clock.now += 15
    assert bench.step().finished_sending == {"r"}


def test_the_hint_before_a_read_means_nothing_to_vllm(bench: WorkerBench) -> None:
    bench.hold(ttl=30)
    before = dict(bench.worker._reqs_to_send)
    bench.receive(READ_AHEAD_NOTICE)
    assert bench.step().finished_sending == set()
    assert before == bench.worker._reqs_to_send
    assert bench.worker.take_report() is None


# ---------------------------------------------------------------- start, reports and idleness


def test_the_fence_is_registered_before_the_caches_and_told_in_the_handshake(
    bench: WorkerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Any] = []
    bench.worker.nixl_backends = ["UCX"]
    bench.nixl.get_reg_descs = lambda regions, kind: (regions, kind)  # type: ignore[attr-defined]
    bench.nixl.register_memory = lambda descs, backends: registered.append((descs, backends))  # type: ignore[attr-defined]

    def register_caches(worker: Any, _caches: Any) -> None:
        registered.append("caches")
        worker.xfer_handshake_metadata = NixlHandshakePayload("hash", b"agent metadata")

    monkeypatch.setattr(pull_worker.NixlPullConnectorWorker, "register_kv_caches", register_caches)
    bench.worker.register_kv_caches({})
    memory = bench.worker._fence_memory
    assert len(bench.worker._registered_descs) == 1  # so that vLLM deregisters it at shutdown
    assert registered == [(([(memory.address, memory.num_bytes, 0, "")], "DRAM"), ["UCX"]), "caches"]
    payload = bench.worker.xfer_handshake_metadata
    assert payload == FencedHandshakePayload("hash", b"agent metadata", memory.address)


def test_a_report_is_taken_once(bench: WorkerBench) -> None:
    bench.hold()
    expire(bench)
    assert bench.report().expired == ["r"]
    assert bench.worker.take_report() is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_idle_engine_lets_nixl_serve_its_peers(bench: WorkerBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress thread outlives an exception, and starts by itself on CPU."""
    calls: list[int] = []
    has_run = threading.Event()

    def progress(_agent: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a peer went away")
        has_run.set()
        raise SystemExit  # ends this thread, which would otherwise run for ever

    monkeypatch.setattr(FencedNixlAgent, "progress", progress)
    monkeypatch.setattr(bench.clock, "sleep", lambda _seconds: bench.clock.perf_counter(), raising=False)
    bench.clock.now += 1000
    BackhaulWorker(None, "own-boot", None, structs.replace(OPTIONS, idle_poll_ms=1e-6))
    assert has_run.wait(WAIT_SECONDS)
    for thread in [thread for thread in threading.enumerate() if thread.name == "backhaul-progress"]:
        thread.join(WAIT_SECONDS)
