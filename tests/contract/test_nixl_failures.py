"""READs and fences that fail under the fenced agent: never a done, and each landing word comes back when it may."""

import pytest

from connector.engine.fence import NUM_LANDING_WORDS
from connector.protocol import TransferOutcome
from tests.contract.fake_nixl import FakeHandle, NixlDisconnectError
from tests.contract.test_nixl_agent import GENERATION, Bench, num_free_landings


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_failed_read_is_a_failure_and_is_not_fenced(bench: Bench) -> None:
    handle = bench.post()
    handle.state = "ERR"
    assert bench.agent.check_xfer_state(handle) == "ERR"
    assert (bench.pull(handle).outcome, bench.pull(handle).reason) == (TransferOutcome.FAILED, "read_failed")
    assert (bench.nixl.fences, bench.nixl.notices()) == ([], [])


def fail_fence(bench: Bench, how: str | Exception) -> FakeHandle:
    handle = bench.arrived()
    bench.nixl.fences[0].state = how
    return handle


@pytest.mark.parametrize("verdict", ["ERR", NixlDisconnectError()])
def test_a_failed_fence_read_is_no_proof_and_gives_its_landing_back(bench: Bench, verdict: str | Exception) -> None:
    """NIXL's verdict ends the READ of one word; nothing can land there any more."""
    handle = fail_fence(bench, verdict)
    assert bench.agent.check_xfer_state(handle) == "ERR"
    assert (bench.pull(handle).outcome, bench.pull(handle).reason) == (TransferOutcome.FAILED, "fence_failed")
    assert bench.nixl.notices() == []
    assert (num_free_landings(bench), bench.nixl.fences[0].is_released) == (NUM_LANDING_WORDS, True)


def test_a_landing_stays_taken_while_its_fence_can_not_be_released(bench: Bench) -> None:
    handle = fail_fence(bench, "ERR")
    bench.nixl.faults["release_xfer_handle"] = RuntimeError("still in use")
    assert bench.agent.check_xfer_state(handle) == "ERR"
    for _ in range(3):
        bench.agent.poll_stray_fences()
        assert (num_free_landings(bench), len(bench.agent.stray_fences)) == (NUM_LANDING_WORDS - 1, 1)
    assert bench.agent.stray_fences.engines == {"peer-boot"}
    bench.nixl.faults.clear()
    bench.agent.poll_stray_fences()
    assert (num_free_landings(bench), len(bench.agent.stray_fences)) == (NUM_LANDING_WORDS, 0)


def test_an_error_that_is_not_nixls_own_proves_no_end(bench: Bench) -> None:
    """The pull goes on, to its deadline if need be, and so does its fence."""
    handle = fail_fence(bench, RuntimeError("cannot look"))
    assert bench.agent.check_xfer_state(handle) == "PROC"
    bench.agent.let_fence_go(bench.pull(handle))
    bench.agent.poll_stray_fences()
    assert num_free_landings(bench) == NUM_LANDING_WORDS - 1
    bench.nixl.fences[0].state = "DONE"
    bench.agent.poll_stray_fences()
    assert num_free_landings(bench) == NUM_LANDING_WORDS


@pytest.mark.parametrize("call", ["initialize_xfer", "transfer_fence"])
@pytest.mark.parametrize("fault", [NixlDisconnectError(), RuntimeError("no")])
def test_a_fence_that_can_not_be_posted_is_no_proof(bench: Bench, call: str, fault: Exception) -> None:
    handle = bench.post()
    handle.state = "DONE"
    bench.nixl.faults[call] = fault
    assert bench.agent.check_xfer_state(handle) == "ERR"
    assert (bench.pull(handle).outcome, bench.pull(handle).reason) == (TransferOutcome.FAILED, "fence_not_posted")
    is_unsure = call == "transfer_fence" and isinstance(fault, RuntimeError)
    assert num_free_landings(bench) == NUM_LANDING_WORDS - is_unsure
    assert bench.nixl.notices() == []


def test_a_read_whose_source_has_died_names_it(bench: Bench) -> None:
    handle = bench.post()
    handle.state = NixlDisconnectError()
    assert bench.agent.check_xfer_state(handle) == "ERR"
    assert (bench.pull(handle).outcome, bench.pull(handle).reason) == (TransferOutcome.FAILED, "source_disconnected")
    assert bench.nixl.notices() == []


def test_a_pull_without_telemetry_is_complete_all_the_same(bench: Bench) -> None:
    bench.nixl.faults["get_xfer_telemetry"] = RuntimeError("no telemetry")
    handle = bench.arrived()
    bench.nixl.answer_fence(0, GENERATION)
    assert bench.agent.check_xfer_state(handle) == "DONE"
    assert bench.agent.get_xfer_telemetry(handle).totalBytes == 0
    assert bench.pull(handle).record().num_bytes == 0


def test_no_look_at_a_pull_waits_or_asks_twice(bench: Bench) -> None:
    """Beside its data a pull costs one READ of one word, looked at once a step: one round trip, asynchronously."""
    handle = bench.arrived()
    num_calls = len(bench.nixl.calls)
    for _ in range(100):
        assert bench.agent.check_xfer_state(handle) == "PROC"
    assert len(bench.nixl.calls) == num_calls
    assert bench.nixl.fences[0].num_looks == 101
    bench.nixl.answer_fence(0, GENERATION)
    assert bench.agent.check_xfer_state(handle) == "DONE"
    assert len(bench.nixl.fences) == 1
