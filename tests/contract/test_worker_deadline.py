"""Deadline and quarantine: a late READ is never released while it may still write, and its end is told once."""

import pytest

from connector.engine.fence import NUM_LANDING_WORDS
from tests.contract.fake_nixl import NixlDisconnectError
from tests.contract.test_worker_pulls import is_forgotten, outcomes
from tests.contract.worker_bench import DEADLINE_SECONDS, GENERATION, WorkerBench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> WorkerBench:
    return WorkerBench(monkeypatch)


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> WorkerBench:
    return WorkerBench(monkeypatch, num_ranks=2)


def run_late(bench: WorkerBench) -> None:
    """The pull is handed back, and its READs go on."""
    bench.clock.now += DEADLINE_SECONDS + 0.1
    results = bench.step()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, {"r"})


def num_free_landings(bench: WorkerBench) -> int:
    return bench.worker._fence_memory.num_free_landings


def test_a_read_within_its_deadline_goes_on(bench: WorkerBench) -> None:
    bench.pull()
    bench.clock.now += DEADLINE_SECONDS - 0.1
    assert bench.step().finished_recving == set()


def test_a_late_read_is_handed_back_and_its_handle_is_kept(bench: WorkerBench) -> None:
    bench.pull()
    run_late(bench)
    report = bench.report()
    assert outcomes(report.transfers) == [("r", "timeout", "deadline")]
    assert (report.quarantined, report.ended) == (["r"], [])
    assert report.transfers[0].num_bytes == 0
    assert report.transfers[0].start_age_ms == pytest.approx(5100, abs=10)
    for _ in range(3):
        bench.clock.now += 60
        assert bench.step().finished_recving == set()
        assert bench.worker.take_report() is None
    assert not bench.nixl.reads[0].is_released


@pytest.mark.parametrize("state", ["DONE", "ERR"])
def test_its_end_is_told_once_whatever_it_was(bench: WorkerBench, state: str) -> None:
    bench.pull()
    run_late(bench)
    bench.report()
    bench.nixl.reads[0].state = state
    bench.step()
    assert (bench.report().ended, bench.nixl.reads[0].is_released) == (["r"], True)
    bench.step()
    assert bench.worker.take_report() is None
    assert bench.nixl.notices() == []
    assert is_forgotten(bench)


def test_a_source_that_dies_ends_the_read_too(bench: WorkerBench) -> None:
    """NIXL raises ``nixlRemoteDisconnectError`` at every status call from then on, and lets the handle go."""
    bench.pull()
    run_late(bench)
    bench.report()
    bench.nixl.reads[0].state = NixlDisconnectError()
    bench.step()
    assert (bench.report().ended, bench.nixl.reads[0].is_released) == (["r"], True)


@pytest.mark.parametrize("state", ["DONE", "ERR", NixlDisconnectError()])
def test_a_handle_that_can_not_be_released_stays_in_quarantine(bench: WorkerBench, state: str | Exception) -> None:
    bench.pull()
    run_late(bench)
    bench.report()
    bench.nixl.reads[0].state = state
    bench.nixl.faults["release_xfer_handle"] = RuntimeError("still in use")
    bench.step()
    assert bench.worker.take_report() is None
    bench.nixl.faults.clear()
    bench.step()
    assert bench.report().ended == ["r"]


def test_blocks_wait_for_every_rank_that_is_late(two_ranks: WorkerBench) -> None:
    bench = two_ranks
    bench.pull()
    run_late(bench)
    report = bench.report()
    assert (report.quarantined, outcomes(report.transfers)) == (["r"], [("r", "timeout", "deadline")] * 2)
    bench.nixl.reads[1].state = "DONE"
    bench.step()
    assert bench.worker.take_report() is None
    bench.nixl.reads[0].state = "DONE"
    bench.step()
    assert bench.report().ended == ["r"]
    assert [read.is_released for read in bench.nixl.reads] == [True, True]


def test_a_rank_that_was_done_is_not_quarantined(two_ranks: WorkerBench) -> None:
    bench = two_ranks
    bench.pull()
    bench.nixl.reads[0].state = "DONE"
    bench.step()
    bench.nixl.answer_fence(0, GENERATION)
    bench.step()
    run_late(bench)
    assert sorted(outcomes(bench.report().transfers)) == [("r", "completed", ""), ("r", "timeout", "deadline")]
    bench.nixl.reads[1].state = "DONE"
    bench.step()
    assert bench.report().ended == ["r"]
    assert [read.is_released for read in bench.nixl.reads] == [True, True]


def test_two_late_requests_end_each_for_itself(bench: WorkerBench) -> None:
    bench.pull("r")
    bench.pull("s")
    bench.clock.now += DEADLINE_SECONDS + 0.1
    assert bench.step().failed_recving == {"r", "s"}
    assert sorted(bench.report().quarantined) == ["r", "s"]
    bench.nixl.reads[1].state = "DONE"
    bench.step()
    assert bench.report().ended == ["s"]


# ---------------------------------------------------------------- the fence under a deadline


def test_a_fence_that_never_answers_is_late_too_and_keeps_no_block_back(bench: WorkerBench) -> None:
    """Its data READ has ended; only its landing word is still written to."""
    bench.pull()
    bench.nixl.reads[0].state = "DONE"
    bench.step()
    run_late(bench)
    report = bench.report()
    assert (report.quarantined, outcomes(report.transfers)) == ([], [("r", "timeout", "fence_deadline")])
    assert (bench.nixl.reads[0].is_released, bench.nixl.fences[0].is_released) == (True, False)
    assert num_free_landings(bench) == NUM_LANDING_WORDS - 1
    bench.nixl.answer_fence(0, GENERATION)
    bench.step()
    assert (bench.nixl.fences[0].is_released, num_free_landings(bench)) == (True, NUM_LANDING_WORDS)
    assert bench.nixl.notices() == []
    assert is_forgotten(bench)


# ---------------------------------------------------------------- long steps


def test_a_read_that_was_done_in_time_is_used_however_long_the_step_took(bench: WorkerBench) -> None:
    """vLLM asks once a step, and a step of long prefills may outlast the deadline."""
    bench.pull()
    bench.nixl.reads[0].state = "DONE"
    bench.clock.now += 3 * DEADLINE_SECONDS
    assert bench.step().failed_recving == set()
    bench.nixl.answer_fence(0, GENERATION)
    bench.clock.now += 3 * DEADLINE_SECONDS
    results = bench.step()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, set())
    assert outcomes(bench.report().transfers) == [("r", "completed", "")]


def test_a_read_that_failed_during_a_long_step_is_a_failure_and_not_late(bench: WorkerBench) -> None:
    bench.nixl.check_remote_metadata = lambda _agent: True  # type: ignore[attr-defined]
    bench.pull()
    bench.nixl.reads[0].state = NixlDisconnectError()
    bench.clock.now += 3 * DEADLINE_SECONDS
    assert bench.step().failed_recving == {"r"}
    report = bench.report()
    assert (report.quarantined, outcomes(report.transfers)) == ([], [("r", "failed", "source_disconnected")])
    assert is_forgotten(bench)


def test_a_new_deadline_holds_for_pulls_under_way(bench: WorkerBench) -> None:
    bench.pull()
    bench.clock.now += 1.0
    assert bench.step().failed_recving == set()
    assert bench.step(pull_deadline_seconds=0.5).failed_recving == {"r"}
