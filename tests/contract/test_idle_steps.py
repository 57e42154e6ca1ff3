"""A core that steps only because blocks are held is paced; one with anything to do is not."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connector.engine.metadata import WorkerReport
from connector.protocol import LeaseState, Role
from tests.connector.engine.builders import a_lease, an_envelope
from tests.contract.scheduler_bench import SchedulerBench, offered_by

IDLE = SimpleNamespace(total_num_scheduled_tokens=0, num_scheduled_tokens={})
BUSY = SimpleNamespace(total_num_scheduled_tokens=1, num_scheduled_tokens={"x": 1})


class Paced:
    """Counts how often the step of a prefill engine was paced."""

    def __init__(self, folder: Path) -> None:
        self.bench = SchedulerBench(folder, is_prefill=True)
        self.scheduler = self.bench.scheduler
        self.num_waits = 0
        idle_wait: Any = self.scheduler.idle_wait
        idle_wait.wait = self._wait

    def _wait(self) -> None:
        self.num_waits += 1

    def step(self, output: Any = IDLE) -> int:
        """How many waits this step took."""
        before = self.num_waits
        self.scheduler.build_connector_meta(output)
        return self.num_waits - before

    def hold_lease(self) -> Any:
        lease = a_lease("held")
        self.scheduler.control.table.bind(self.bench.cache.num_gpu_blocks)
        self.scheduler.control.table.add(lease)
        return lease


@pytest.fixture
def paced(tmp_path: Path) -> Paced:
    return Paced(tmp_path)


def test_an_engine_that_holds_nothing_is_not_paced(paced: Paced) -> None:
    assert paced.step() == 0


def test_an_engine_that_only_holds_leases_is(paced: Paced) -> None:
    paced.hold_lease()
    assert [paced.step(), paced.step()] == [1, 1]


def test_an_engine_at_work_is_not(paced: Paced) -> None:
    paced.hold_lease()
    assert paced.step(BUSY) == 0


def test_orders_for_the_workers_are_not_kept_waiting(paced: Paced) -> None:
    lease = paced.hold_lease()
    paced.scheduler.control.release(lease, LeaseState.RELEASED, "command")
    assert paced.step() == 0


def test_a_pull_under_way_is_polled_at_full_speed(paced: Paced, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    decode = SchedulerBench(tmp_path / "d", is_prefill=False)
    paced.hold_lease()
    request = paced.bench.arrive([*range(12), 1], an_envelope(leg=Role.PREFILL), offered_by(decode, range(12)))
    assert paced.bench.allocate(request) == 12
    assert [paced.step(), paced.step()] == [0, 0]
    paced.bench.results(finished_recving={"req-1"})
    assert paced.step() == 1


def test_an_engine_that_only_waits_for_late_reads_to_end_is_paced(paced: Paced) -> None:
    """Their source may be frozen for minutes, and vLLM steps up to a thousand times a second."""
    request = paced.bench.arrive_raw(range(8), None, "late")
    paced.bench.allocate(request)
    paced.bench.results(WorkerReport(quarantined=["late"]), failed_recving={"late"})
    assert paced.step() == 1
    paced.bench.results(WorkerReport(ended=["late"]))
    assert paced.step() == 0
