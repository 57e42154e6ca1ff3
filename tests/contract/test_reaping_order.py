"""A lease ends at its own deadline, whatever else is held longer and however the deadlines moved meanwhile.

Field report 3 (vllm-project/vllm#58222, PR #50789): vLLM's reaper stopped at the first entry that had time left, and
heartbeats and two different lifetimes (a short handoff, a long session lease) break the order that it relied on.
"""

import itertools

import pytest

from tests.contract.worker_bench import WorkerBench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> WorkerBench:
    return WorkerBench(monkeypatch)


def test_short_lease_ends_though_a_longer_one_came_first(bench: WorkerBench) -> None:
    bench.hold("x", ttl=480, slot=1)
    bench.hold("y", ttl=1, slot=2, kept=False)
    bench.clock.now += 5
    assert bench.step().finished_sending == {"y"}
    assert list(bench.worker._reqs_to_send) == ["x"]
    assert (bench.word(1) != 0, bench.word(2)) == (True, 0)


def test_short_lease_ends_though_the_longer_one_is_kept_alive_by_heartbeats(bench: WorkerBench) -> None:
    bench.hold("x", ttl=480, slot=1, kept=False)
    bench.hold("y", ttl=1, slot=2, kept=False)
    for _ in range(3):
        bench.clock.now += 0.25
        bench.receive(b"HB:x")
        assert bench.step(lease_extension_seconds=600).finished_sending == set()
    bench.clock.now += 5
    bench.receive(b"HB:x")
    assert bench.step(lease_extension_seconds=600).finished_sending == {"y"}
    assert bench.word(2) == 0


@pytest.mark.parametrize("order", list(itertools.permutations([1, 20, 480, 5])))
def test_each_of_several_leases_ends_in_its_own_time(bench: WorkerBench, order: tuple[int, ...]) -> None:
    """Also after an extension and a shortening turned their order around."""
    for slot, ttl in enumerate(order):
        bench.hold(f"ttl-{ttl}", ttl=ttl, slot=slot, kept=ttl > 5)
    bench.step(deadlines={"ttl-480": 10.0, "ttl-1": 30.0})
    ended = []
    for _ in range(35):
        bench.clock.now += 1
        ended += sorted(bench.step().finished_sending)
    assert ended == ["ttl-5", "ttl-480", "ttl-20", "ttl-1"]
    assert [bench.word(slot) for slot in range(4)] == [0, 0, 0, 0]
    assert bench.worker._reqs_to_send == {}
