"""A pytest plugin: before any test module is imported, vLLM's names for its pull connector mean ours.

vLLM's tests write transfer params in the clear and read them so; our connector believes and gives signed ones only.
What a router and a peer of ours would do to such a request is done beside it (``suite_router``), nothing else. These
modules are imported by their own names: inside vLLM's tests ``tests`` is vLLM's package.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from suite_scheduler import SuiteScheduler
from suite_worker import SuiteWorker, TransparentAgent
from vllm.distributed.kv_transfer.kv_connector.v1 import nixl
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import connector as facade
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import scheduler as scheduler_names
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import worker as worker_names

from connector.engine import connector as ours
from connector.engine import guards
from connector.engine import worker as our_worker
from connector.engine.options import EngineOptions, parse_options

FOLDER = Path(tempfile.mkdtemp(prefix="backhaul-suite-"))
KEY_FILE = FOLDER / "fleet.key"
counter = iter(range(1_000_000))


def options_of(config: Any, *, is_cpu: bool = True) -> EngineOptions:
    """What an operator would have added to this test's configuration; waits and polls of idle engines are off."""
    given = config.kv_connector_extra_config
    extra = {
        "backhaul_engine_name": "suite",
        "backhaul_link_path": str(FOLDER / f"{next(counter)}.sock"),
        "backhaul_fleet_key_file": str(KEY_FILE),
        "backhaul_idle_poll_ms": 0.0,
        "backhaul_idle_wait_ms": 0.0,
        "backhaul_cpu_yield_ms": 0.0,
        "backhaul_policy_wait_seconds": 0.0,
        **given,
        "bidirectional_kv_xfer": True,
    }
    stated = SimpleNamespace(
        kv_role="kv_producer" if config.kv_role == "kv_producer" else "kv_consumer",
        kv_load_failure_policy="recompute",
        get_from_extra_config=extra.get,
    )
    options = parse_options(stated, is_cpu=is_cpu)
    if given.get("bidirectional_kv_xfer"):
        return options
    policy = msgspec.structs.replace(options.policy, bidirectional_kv_xfer=False)
    return msgspec.structs.replace(options, policy=policy)


def substitute() -> None:
    KEY_FILE.touch(mode=0o600)
    KEY_FILE.write_text(f"suite {bytes(range(32)).hex()}\n")
    ours.parse_options = options_of  # type: ignore[assignment]
    ours.apply_cpu_options = lambda _options: None
    ours.BackhaulScheduler = SuiteScheduler  # type: ignore[misc]
    ours.BackhaulWorker = SuiteWorker  # type: ignore[misc]
    our_worker.FencedNixlAgent = TransparentAgent  # type: ignore[misc]
    SuiteScheduler.options_of = SuiteWorker.options_of = staticmethod(options_of)
    for module in (nixl, facade):
        module.NixlConnector = module.NixlPullConnector = ours.NixlConnector
    for module in (nixl, scheduler_names):
        module.NixlConnectorScheduler = module.NixlPullConnectorScheduler = SuiteScheduler
    for module in (nixl, worker_names):
        module.NixlConnectorWorker = module.NixlPullConnectorWorker = SuiteWorker


@pytest.fixture(autouse=True)
def _nothing_contained() -> Iterator[None]:
    """A fault of ours that was contained would let vLLM's own behaviour pass for ours."""
    before = guards.total()
    yield
    assert guards.total() == before, f"contained: {dict(guards.num_contained)}"


substitute()
