"""These tests need vLLM and numpy, so that only the engine's environment collects them."""

import importlib.util

import pytest

from connector.engine import guards

collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _nothing_contained_before() -> None:
    """Counts are the process's, and a worker reports them as they change."""
    guards.num_contained.clear()
    guards.num_contained_of_workers.clear()
