"""The fenced agent: to vLLM a pull is done only after the source proved that it still held the blocks."""

import pytest

from connector.engine.fence import NUM_LANDING_WORDS, FenceMemory
from connector.engine.metadata import FenceTarget
from connector.engine.nixl_agent import READ_AHEAD_NOTICE, FencedNixlAgent
from connector.engine.notices import NoticeFate
from connector.engine.pulls import Pull, ReadContext
from connector.protocol import TransferOutcome
from tests.contract.fake_nixl import FakeHandle, FakeNixl

GENERATION = 2**62 + 5
TARGET = FenceTarget({0: 0x7000, 1: 0x8000}, GENERATION)


class Bench:
    """A fenced agent on a fake one, and how vLLM drives it."""

    def __init__(self) -> None:
        self.nixl = FakeNixl()
        self.fence = FenceMemory()
        self.agent = FencedNixlAgent(self.nixl, self.fence, lambda _: NoticeFate.PASS)

    def prepare(self, request_id: str = "r", rank: int = 0, target: FenceTarget | None = TARGET) -> FakeHandle:
        if target is not None:
            self.agent.fence_targets[request_id] = target
        self.agent.context = ReadContext(request_id, "peer-boot", rank, f"peer-{rank}")
        handle = self.agent.make_prepped_xfer("READ", 1, [2], 3, [4], notif_msg=b"src:1")
        self.agent.context = None
        assert isinstance(handle, FakeHandle)
        return handle

    def post(self, request_id: str = "r", rank: int = 0, target: FenceTarget | None = TARGET) -> FakeHandle:
        handle = self.prepare(request_id, rank, target)
        self.agent.transfer(handle)
        return handle

    def arrived(self, request_id: str = "r") -> FakeHandle:
        """A pull whose data is there and whose fence READ is under way."""
        handle = self.post(request_id)
        handle.state = "DONE"
        assert self.agent.check_xfer_state(handle) == "PROC"
        return handle

    def pull(self, handle: FakeHandle) -> Pull:
        return self.agent.pulls[id(handle)]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---------------------------------------------------------------- the good case


def test_a_pull_is_done_only_after_a_matching_fence_word(bench: Bench) -> None:
    handle = bench.post()
    assert bench.agent.check_xfer_state(handle) == "PROC"
    assert bench.nixl.fences == []
    handle.state = "DONE"
    assert bench.agent.check_xfer_state(handle) == "PROC"
    assert bench.agent.check_xfer_state(handle) == "PROC"
    assert len(bench.nixl.fences) == 1
    bench.nixl.answer_fence(0, GENERATION)
    assert bench.agent.check_xfer_state(handle) == "DONE"
    assert bench.pull(handle).outcome is TransferOutcome.COMPLETED


def test_the_source_is_notified_after_the_fence_and_exactly_once(bench: Bench) -> None:
    handle = bench.arrived()
    assert handle.facts["notif_msg"] == b""
    assert bench.nixl.notices() == []
    bench.nixl.answer_fence(0, GENERATION)
    assert bench.nixl.notices() == []
    for _ in range(3):
        assert bench.agent.check_xfer_state(handle) == "DONE"
    assert bench.nixl.notices() == [("peer-0", b"src:1")]


def test_the_fence_reads_the_word_of_the_sources_own_rank(bench: Bench) -> None:
    handle = bench.post(rank=1)
    handle.state = "DONE"
    bench.agent.check_xfer_state(handle)
    facts = bench.nixl.fences[0].facts
    assert bench.nixl.fences[0].operation == "READ"
    assert facts["remote"].regions == [(0x8000, 8, 0)]
    assert (facts["remote"].kind, facts["local"].kind, facts["remote_agent"]) == ("DRAM", "DRAM", "peer-1")


def test_a_finished_fence_gives_back_its_landing_and_leaves_the_data_handle_to_vllm(bench: Bench) -> None:
    handle = bench.arrived()
    bench.nixl.answer_fence(0, GENERATION)
    bench.agent.check_xfer_state(handle)
    assert (bench.nixl.fences[0].is_released, handle.is_released) == (True, False)
    assert num_free_landings(bench) == NUM_LANDING_WORDS


def num_free_landings(bench: Bench) -> int:
    return bench.fence.num_free_landings


def test_ranks_of_one_request_are_fenced_each_for_itself(bench: Bench) -> None:
    first, second = bench.post(rank=0), bench.post(rank=1)
    first.state = second.state = "DONE"
    for handle in (first, second):
        bench.agent.check_xfer_state(handle)
    bench.nixl.answer_fence(1, GENERATION)
    assert [bench.agent.check_xfer_state(handle) for handle in (first, second)] == ["PROC", "DONE"]
    bench.nixl.answer_fence(0, 0)
    assert [bench.agent.check_xfer_state(handle) for handle in (first, second)] == ["ERR", "DONE"]
    assert bench.nixl.notices() == [("peer-1", b"src:1")]


def test_a_completed_pull_records_its_bytes_and_its_times(bench: Bench) -> None:
    handle = bench.arrived()
    bench.nixl.answer_fence(0, GENERATION)
    bench.agent.check_xfer_state(handle)
    record = bench.pull(handle).record()
    assert (record.request_id, record.outcome, record.reason) == ("r", "completed", "")
    assert (record.num_bytes, record.num_descriptors) == (4096, 24)
    assert 0 <= record.post_ms <= record.duration_ms <= record.start_age_ms < 60_000


def test_a_notice_that_can_not_be_sent_does_not_undo_the_pull(bench: Bench) -> None:
    handle = bench.arrived()
    bench.nixl.answer_fence(0, GENERATION)
    bench.nixl.faults["send_notif"] = RuntimeError("peer gone")
    assert bench.agent.check_xfer_state(handle) == "DONE"


# ---------------------------------------------------------------- everything else is no pull


@pytest.mark.parametrize("word", [0, GENERATION - 1, GENERATION + 1, 2**64 - 1])
def test_another_word_means_that_the_lease_ended(bench: Bench, word: int) -> None:
    handle = bench.arrived()
    bench.nixl.answer_fence(0, word)
    assert bench.agent.check_xfer_state(handle) == "ERR"
    assert bench.agent.check_xfer_state(handle) == "ERR"
    pull = bench.pull(handle)
    assert (pull.outcome, pull.reason, pull.record().num_bytes) == (TransferOutcome.FENCED, "lease_ended", 0)
    assert bench.nixl.notices() == []
    assert num_free_landings(bench) == NUM_LANDING_WORDS


def test_a_word_left_in_a_landing_by_the_pull_before_proves_nothing(bench: Bench) -> None:
    """The landing is used again, and this time the READ brings nothing at all."""
    for _ in range(NUM_LANDING_WORDS):
        handle = bench.arrived()
        bench.nixl.answer_fence(-1, GENERATION)
        assert bench.agent.check_xfer_state(handle) == "DONE"
        bench.agent.pulls.clear()
    handle = bench.arrived()
    bench.nixl.fences[-1].state = "DONE"
    assert bench.agent.check_xfer_state(handle) == "ERR"


@pytest.mark.parametrize(
    "target", [None, FenceTarget({}, GENERATION), FenceTarget({1: 0x8000}, GENERATION)], ids=["none", "empty", "rank"]
)
def test_without_a_fence_word_nothing_is_believed(bench: Bench, target: FenceTarget | None) -> None:
    handle = bench.post(target=target)
    handle.state = "DONE"
    assert bench.agent.check_xfer_state(handle) == "ERR"
    assert (bench.pull(handle).outcome, bench.pull(handle).reason) == (TransferOutcome.FENCED, "no_fence_word")
    assert (bench.nixl.fences, bench.nixl.notices()) == ([], [])


def test_more_pulls_than_landings_prove_nothing(bench: Bench) -> None:
    for _ in range(NUM_LANDING_WORDS):
        bench.fence.take_landing()
    handle = bench.post()
    handle.state = "DONE"
    assert bench.agent.check_xfer_state(handle) == "ERR"
    assert (bench.pull(handle).outcome, bench.pull(handle).reason) == (TransferOutcome.FAILED, "no_landing_word")


# ---------------------------------------------------------------- transfers that are not ours


@pytest.mark.parametrize("operation", ["READ", "WRITE"])
def test_a_transfer_outside_of_a_pull_passes_through(bench: Bench, operation: str) -> None:
    handle = bench.agent.make_prepped_xfer(operation, 1, [2], 3, [4], notif_msg=b"note")
    bench.agent.transfer(handle)
    assert handle.facts["notif_msg"] == b"note"
    handle.state = "DONE"
    assert bench.agent.check_xfer_state(handle) == "DONE"
    assert (bench.agent.pulls, bench.nixl.fences, bench.nixl.sent) == ({}, [], [])


def test_a_write_during_a_pull_keeps_its_notice(bench: Bench) -> None:
    bench.agent.context = ReadContext("r", "peer-boot", 0, "peer-0")
    handle = bench.agent.make_prepped_xfer("WRITE", 1, [2], 3, [4], notif_msg=b"note")
    assert handle.facts["notif_msg"] == b"note"
    assert bench.agent.pulls == {}


def test_what_is_not_named_passes_through(bench: Bench) -> None:
    assert bench.agent.name == "fake-agent"
    assert bench.agent.get_xfer_descs([(1, 2, 3)], "VRAM").kind == "VRAM"
    with pytest.raises(AttributeError):
        _ = bench.agent.no_such_call


# ---------------------------------------------------------------- the hint before a READ


def test_the_source_is_told_before_the_read_is_posted(bench: Bench) -> None:
    bench.post()
    assert bench.nixl.sent == [("peer-0", READ_AHEAD_NOTICE)]
    assert bench.nixl.calls.index("send_notif") < bench.nixl.calls.index("transfer_data")


def test_a_hint_that_can_not_be_sent_does_not_stop_the_read(bench: Bench) -> None:
    bench.nixl.faults["send_notif"] = RuntimeError("peer gone")
    handle = bench.post()
    assert handle.is_posted
