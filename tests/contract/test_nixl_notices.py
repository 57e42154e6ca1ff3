"""Notices through the fenced agent: those of kept leases are held back and counted, and none is lost while idle."""

import threading

import pytest

from connector.engine import nixl_agent
from connector.engine.fence import FenceMemory
from connector.engine.nixl_agent import READ_AHEAD_NOTICE, FencedNixlAgent
from connector.engine.notices import MAX_WAITING, NoticeFate
from tests.contract.fake_nixl import FakeNixl

DEADLINE_SECONDS = 10.0


class Bench:
    def __init__(self) -> None:
        self.nixl = FakeNixl()
        self.kept = {"kept"}
        self.running: set[str] = set()
        self.agent = FencedNixlAgent(self.nixl, FenceMemory(), self.fate_of)

    def fate_of(self, request_id: str) -> NoticeFate:
        if request_id in self.running:
            return NoticeFate.WAIT
        return NoticeFate.KEEP if request_id in self.kept else NoticeFate.PASS

    def receive(self, **messages: list[bytes]) -> dict[str, list[bytes]]:
        """What vLLM is told after peers sent these."""
        self.nixl.incoming.append(messages)
        return self.agent.get_new_notifs()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_read_of_a_kept_lease_is_counted_and_held_back(bench: Bench) -> None:
    assert bench.receive(p=[b"kept:1", b"kept:1"]) == {}
    assert bench.agent.notices.take_reads() == ["kept", "kept"]
    assert bench.agent.notices.take_passed_reads() == set()


def test_any_other_read_is_passed_on_and_counted(bench: Bench) -> None:
    assert bench.receive(p=[b"loose:2"]) == {"p": [b"loose:2"]}
    assert bench.agent.notices.take_reads() == ["loose"]
    assert bench.agent.notices.take_passed_reads() == {"loose"}


def test_counts_are_taken_once(bench: Bench) -> None:
    bench.receive(p=[b"kept:1", b"loose:1"])
    bench.agent.notices.take_reads()
    bench.agent.notices.take_passed_reads()
    assert (bench.agent.notices.take_reads(), bench.agent.notices.take_passed_reads()) == ([], set())


def test_heartbeats_are_passed_through_and_are_no_reads(bench: Bench) -> None:
    messages = [b"HB:kept,loose", READ_AHEAD_NOTICE, b"HB:"]
    assert bench.receive(p=messages) == {"p": messages}
    assert bench.agent.notices.take_reads() == []


def test_each_peers_messages_keep_their_order(bench: Bench) -> None:
    received = bench.receive(p=[b"a:1", b"kept:1", b"HB:x", b"b:1"], q=[b"kept:1"], r=[b"c:1"])
    assert received == {"p": [b"a:1", b"HB:x", b"b:1"], "r": [b"c:1"]}


def test_a_request_id_may_contain_colons(bench: Bench) -> None:
    bench.kept.add("cmpl:kept:0")
    assert bench.receive(p=[b"cmpl:kept:0:4"]) == {}
    assert bench.agent.notices.take_reads() == ["cmpl:kept:0"]


def test_whether_a_lease_is_kept_is_asked_when_vllm_asks(bench: Bench) -> None:
    """Policy may change between the arrival of a notice and the next step."""
    bench.nixl.incoming.append({"p": [b"kept:1"]})
    bench.agent.progress()
    bench.kept.clear()
    assert bench.agent.get_new_notifs() == {"p": [b"kept:1"]}


# ---------------------------------------------------------------- what vLLM would die of


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"no-colon",
        b":1",
        b"r:",
        b"r:x",
        b"r:0",
        b"r:-1",
        b"r:" + b"9" * 5000,
        b"\xff\xfe:1",
        b"HB:\xff",
        b"x" * 70_000,
    ],
)
def test_a_malformed_notice_is_dropped(bench: Bench, message: bytes) -> None:
    """vLLM parses what it is given without a guard; NIXL's side channel lets anyone on the network write."""
    assert bench.receive(p=[b"a:1", message, b"b:2"]) == {"p": [b"a:1", b"b:2"]}
    assert bench.agent.notices.take_reads() == ["a", "b"]


def test_a_notice_for_a_request_that_still_runs_waits_for_its_lease(bench: Bench) -> None:
    """A fast reader may be done before the worker hears of the lease; vLLM would free the blocks of a running one."""
    bench.running.add("kept")
    assert bench.receive(p=[b"kept:1", b"loose:1"]) == {"p": [b"loose:1"]}
    assert bench.receive() == {}
    assert bench.agent.notices.take_reads() == ["loose"]
    bench.running.clear()
    assert bench.receive() == {}
    assert bench.agent.notices.take_reads() == ["kept"]
    assert bench.agent.notices.num_waiting == 0


def test_notices_that_wait_are_bounded(bench: Bench) -> None:
    bench.running.add("r")
    bench.receive(p=[b"r:1"] * (MAX_WAITING + 10))
    assert bench.agent.notices.num_waiting == MAX_WAITING


def test_notices_while_idle_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_agent, "MAX_STASHED_NOTICES", 3)
    for _ in range(5):
        bench.nixl.incoming.append({"p": [b"a:1", b"b:1"]})
        bench.agent.progress()
    assert bench.receive() == {"p": [b"a:1", b"b:1"]}


# ---------------------------------------------------------------- while the engine is idle


def test_what_arrives_while_idle_is_delivered_later_in_order(bench: Bench) -> None:
    for messages in ({"p": [b"a:1"], "q": [b"b:1"]}, {}, {"p": [b"kept:1", b"HB:x"]}):
        bench.nixl.incoming.append(messages)
        in_another_thread(bench.agent.progress)
    assert bench.agent.notices.take_reads() == []
    assert bench.receive(p=[b"c:1"]) == {"p": [b"a:1", b"HB:x", b"c:1"], "q": [b"b:1"]}
    assert bench.agent.notices.take_reads() == ["a", "kept", "c", "b"]
    assert bench.agent.get_new_notifs() == {}


def in_another_thread(work: object) -> None:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]  # any callable
    thread.start()
    thread.join(DEADLINE_SECONDS)
    assert not thread.is_alive()


def test_a_hint_makes_the_source_serve_until_the_read_has_ended(bench: Bench) -> None:
    assert not bench.agent.is_serving
    bench.nixl.incoming.append({"p": [READ_AHEAD_NOTICE]})
    bench.agent.progress()
    assert bench.agent.is_serving
    bench.nixl.incoming.append({"p": [b"HB:x"]})
    bench.agent.progress()
    assert bench.agent.is_serving
    bench.nixl.incoming.append({"p": [b"kept:1"]})
    bench.agent.progress()
    assert not bench.agent.is_serving


class SlowNixl(FakeNixl):
    """Its status call sits inside NIXL until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_inside = threading.Event()
        self.may_leave = threading.Event()

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        self.is_inside.set()
        assert self.may_leave.wait(DEADLINE_SECONDS)
        return super().get_new_notifs()


@pytest.mark.parametrize("call", ["transfer", "check_xfer_state", "send_notif", "get_new_notifs", "add_remote_agent"])
def test_no_two_threads_are_ever_inside_nixl(call: str) -> None:
    """NIXL's own sync mode is NONE."""
    nixl = SlowNixl()
    nixl.add_remote_agent = lambda _metadata: nixl.calls.append("add_remote_agent")  # type: ignore[attr-defined]
    agent = FencedNixlAgent(nixl, FenceMemory(), lambda _: NoticeFate.PASS)
    handle = agent.make_prepped_xfer("READ", 1, [2], 3, [4])
    arguments = {"send_notif": ("peer", b"m"), "get_new_notifs": (), "add_remote_agent": (b"",)}.get(call, (handle,))
    is_done = threading.Event()

    def enter() -> None:
        getattr(agent, call)(*arguments)
        is_done.set()

    idle, step = threading.Thread(target=agent.progress), threading.Thread(target=enter)
    idle.start()
    assert nixl.is_inside.wait(DEADLINE_SECONDS)
    num_before = len(nixl.calls)
    step.start()
    assert not is_done.wait(0.05)
    assert len(nixl.calls) == num_before
    nixl.may_leave.set()
    assert is_done.wait(DEADLINE_SECONDS)
    idle.join()
    step.join()


def test_a_step_hears_an_announced_read_as_the_idle_poll_does(bench: Bench) -> None:
    bench.receive(p=[READ_AHEAD_NOTICE])
    assert bench.agent.is_serving
    bench.receive(p=[b"loose:1"])
    assert not bench.agent.is_serving
