"""These tests need vLLM and numpy, so that only the engine's environment collects them."""

import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connector.engine import guards

if TYPE_CHECKING:
    from tests.contract.pair_bench import Pair
    from tests.contract.worker_bench import ManualClock

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _nothing_contained_before() -> None:
    """Counts are the process's, and a worker reports them as they change."""
    guards.num_contained.clear()
    guards.num_contained_of_workers.clear()


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both engines find model and key; shared, since vLLM's configuration takes seconds to make."""
    return tmp_path_factory.mktemp("pair")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> "ManualClock":
    """Of every process of the pair; runs only when told to."""
    from tests.contract.worker_bench import ManualClock

    clock = ManualClock()
    monkeypatch.setattr(time, "perf_counter", clock.perf_counter)
    return clock


@pytest.fixture
def pair(pair_folder: Path, clock: "ManualClock") -> "Iterator[Pair]":
    from tests.contract.pair_bench import Pair

    pair = Pair(pair_folder, clock)
    yield pair
    pair.close()


@pytest.fixture
def pair_of_two_ranks(pair_folder: Path, clock: "ManualClock") -> "Iterator[Pair]":
    from tests.contract.pair_bench import Pair

    pair = Pair(pair_folder, clock, num_ranks=2)
    yield pair
    pair.close()
