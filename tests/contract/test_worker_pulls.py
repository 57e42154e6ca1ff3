"""Pulls on the worker, through vLLM's own code: done after the fence, or handed back for recompute with one reason."""

from collections.abc import Callable

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import ReqMeta

from connector.engine.metadata import RankTransfer
from tests.contract.fake_nixl import NixlDisconnectError
from tests.contract.worker_bench import GENERATION, PEER, WorkerBench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> WorkerBench:
    return WorkerBench(monkeypatch)


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> WorkerBench:
    return WorkerBench(monkeypatch, num_ranks=2)


def outcomes(transfers: list[RankTransfer]) -> list[tuple[str, str, str]]:
    return [(transfer.request_id, transfer.outcome, transfer.reason) for transfer in transfers]


def is_forgotten(bench: WorkerBench, request_id: str = "r") -> bool:
    """Nothing of the request is left behind in the worker."""
    worker = bench.worker
    vllms = [worker._recving_metadata, worker._recving_transfers, worker._recv_failures, worker._pending_recv_notifs]
    return all(request_id not in place for place in [worker._pulls, *vllms])


# ---------------------------------------------------------------- a pull that works


def test_a_pull_is_reported_to_vllm_only_after_the_fence(bench: WorkerBench) -> None:
    assert bench.pull().finished_recving == set()
    (read,) = bench.nixl.reads
    assert read.facts["args"] == (10, [1, 2, 3], 20, [7, 8, 9])
    read.state = "DONE"
    assert bench.step().finished_recving == set()
    assert bench.nixl.notices() == []
    bench.nixl.answer_fence(0, GENERATION)
    results = bench.step()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, set())
    assert bench.nixl.notices() == [("agent-0", b"src:1")]
    assert read.is_released


def test_a_completed_pull_is_recorded_once_with_its_bytes(bench: WorkerBench) -> None:
    bench.pull()
    bench.nixl.reads[0].state = "DONE"
    bench.step()
    bench.nixl.answer_fence(0, GENERATION)
    bench.step()
    (transfer,) = bench.report().transfers
    assert (transfer.outcome, transfer.num_bytes, transfer.num_descriptors) == ("completed", 4096, 24)
    assert bench.worker.take_report() is None
    assert is_forgotten(bench)
    assert bench.stats.data["num_failed_transfers"] == []


def test_every_source_rank_is_fenced_by_its_own_word(two_ranks: WorkerBench) -> None:
    bench = two_ranks
    bench.pull()
    for read in bench.nixl.reads:
        read.state = "DONE"
    bench.step()
    remote = [fence.facts["remote"].regions[0][0] for fence in bench.nixl.fences]
    assert remote == [0x7000, 0x7100]
    bench.nixl.answer_fence(0, GENERATION)
    assert bench.step().finished_recving == set()
    bench.nixl.answer_fence(1, GENERATION)
    results = bench.step()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, set())
    assert outcomes(bench.report().transfers) == [("r", "completed", "")] * 2
    assert [agent for agent, _ in bench.nixl.notices()] == ["agent-0", "agent-1"]


# ---------------------------------------------------------------- pulls that must recompute


def test_a_lease_that_ended_during_the_read_is_an_expiry_and_no_transport_failure(bench: WorkerBench) -> None:
    bench.pull()
    bench.nixl.reads[0].state = "DONE"
    bench.step()
    bench.nixl.answer_fence(0, 0)
    results = bench.step()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, {"r"})
    assert outcomes(bench.report().transfers) == [("r", "fenced", "lease_ended")]
    assert (bench.stats.data["num_kv_expired_reqs"], bench.stats.data["num_failed_transfers"]) == ([1], [])
    assert bench.nixl.notices() == []
    assert is_forgotten(bench)


def test_one_rank_that_lost_its_lease_fails_the_whole_pull(two_ranks: WorkerBench) -> None:
    bench = two_ranks
    bench.pull()
    for read in bench.nixl.reads:
        read.state = "DONE"
    bench.step()
    bench.nixl.answer_fence(0, GENERATION)
    bench.nixl.answer_fence(1, 0)
    results = bench.step()
    assert results.failed_recving == {"r"}
    assert sorted(outcomes(bench.report().transfers)) == [("r", "completed", ""), ("r", "fenced", "lease_ended")]


def test_a_lease_about_to_expire_is_not_read_at_all(bench: WorkerBench) -> None:
    results = bench.pull(expires_in=4.0)
    assert (results.finished_recving, results.failed_recving) == ({"r"}, {"r"})
    assert bench.nixl.reads == []
    assert outcomes(bench.report().transfers) == [("r", "fenced", "expired_before_read")]
    assert is_forgotten(bench)


def test_a_lease_with_time_left_is_read(bench: WorkerBench) -> None:
    bench.pull(expires_in=6.0)
    assert len(bench.nixl.reads) == 1


def fail_read(bench: WorkerBench) -> None:
    bench.pull()
    bench.nixl.reads[0].state = "ERR"


def fail_fence(bench: WorkerBench) -> None:
    bench.pull()
    bench.nixl.reads[0].state = "DONE"
    bench.step()
    bench.nixl.fences[0].state = NixlDisconnectError()


def lose_the_peer(bench: WorkerBench) -> None:
    bench.pull()
    bench.nixl.reads[0].state = NixlDisconnectError()


@pytest.mark.parametrize(
    ("break_off", "reason"),
    [(fail_read, "read_failed"), (fail_fence, "fence_failed"), (lose_the_peer, "source_disconnected")],
)
def test_a_transport_failure_is_told_from_an_expiry(
    bench: WorkerBench, break_off: Callable[[WorkerBench], None], reason: str
) -> None:
    bench.nixl.check_remote_metadata = lambda _agent: True  # type: ignore[attr-defined]  # vLLM probes the peer
    break_off(bench)
    results = bench.step()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, {"r"})
    assert outcomes(bench.report().transfers) == [("r", "failed", reason)]
    assert bench.stats.data["num_failed_transfers"] == [1]
    assert bench.nixl.reads[0].is_released
    assert is_forgotten(bench)


@pytest.mark.parametrize("call", ["make_prepped_xfer", "transfer_data"])
def test_a_read_that_can_not_be_posted_fails_with_sound_times(bench: WorkerBench, call: str) -> None:
    bench.nixl.check_remote_metadata = lambda _agent: True  # type: ignore[attr-defined]
    bench.nixl.faults[call] = RuntimeError("no route")
    results = bench.pull()
    assert results.failed_recving == {"r"}
    (transfer,) = bench.report().transfers
    assert transfer.outcome == "failed"
    assert transfer.duration_ms < 1000
    assert transfer.start_age_ms < 1000
    assert is_forgotten(bench)


def test_a_pull_that_vllm_can_not_even_begin_fails_by_itself(bench: WorkerBench) -> None:
    """Whatever it stumbles over, stock vLLM's worker would die of it, and every request of the engine."""
    bench.worker.tp_mappings.clear()
    results = bench.pull()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, {"r"})
    assert outcomes(bench.report().transfers) == [("r", "failed", "hook_failed")]
    assert is_forgotten(bench)


def test_a_peer_that_vllm_has_marked_invalid_is_not_read(bench: WorkerBench) -> None:
    bench.worker._invalid_remote_engines.add(PEER)
    bench.worker._cleanup_remote_engines = lambda: None
    results = bench.pull()
    assert results.failed_recving == {"r"}
    assert outcomes(bench.report().transfers) == [("r", "failed", "peer_invalid")]
    assert is_forgotten(bench)


# ---------------------------------------------------------------- handshakes


class Handshakes:
    """Stands for vLLM's background handshake: under way until a test ends it."""

    def __init__(self, bench: WorkerBench) -> None:
        self._bench = bench
        self.waiting: list[tuple[str, ReqMeta]] = []
        bench.worker._background_nixl_handshake = lambda req_id, _engine, meta: self.waiting.append((req_id, meta))

    def succeed(self) -> None:
        agents = self._bench.worker._remote_agents
        agents["new-boot"] = agents["peer-boot"]
        self._bench.worker._engine_by_address["127.0.0.1", 5601] = "new-boot"
        self._bench.worker._ready_requests.put(self.waiting.pop())

    def fail(self) -> None:
        self._bench.worker._failed_recv_reqs.put(self.waiting.pop()[0])


def test_a_failed_handshake_recomputes_and_says_so(bench: WorkerBench) -> None:
    handshakes = Handshakes(bench)
    assert bench.pull(engine="new-boot").finished_recving == set()
    handshakes.fail()
    results = bench.step()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, {"r"})
    assert outcomes(bench.report().transfers) == [("r", "failed", "handshake_failed")]
    assert is_forgotten(bench)


def late_handshake(bench: WorkerBench) -> Handshakes:
    handshakes = Handshakes(bench)
    bench.pull(engine="new-boot")
    bench.clock.now += 5.1
    results = bench.step()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, {"r"})
    assert outcomes(bench.report().transfers) == [("r", "timeout", "handshake_deadline")]
    return handshakes


def test_a_handshake_that_ends_after_the_deadline_posts_no_read(bench: WorkerBench) -> None:
    """By then the destination blocks belong to someone else."""
    handshakes = late_handshake(bench)
    handshakes.succeed()
    results = bench.step()
    assert bench.nixl.reads == []
    assert (results.finished_recving, bench.report().transfers) == (set(), [])
    assert is_forgotten(bench)


def test_a_handshake_that_fails_after_the_deadline_is_reported_once(bench: WorkerBench) -> None:
    handshakes = late_handshake(bench)
    handshakes.fail()
    results = bench.step()
    assert (results.finished_recving, bench.report().transfers) == (set(), [])
    assert is_forgotten(bench)
