"""Every seam of vLLM 0.32's core that our connector relies on, and the façade that vLLM loads."""

import functools
import queue
import time
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from msgspec import structs
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector

from connector.engine.connector import NixlConnector
from connector.engine.cpu import NAP_MS, apply_cpu_options
from connector.engine.endings import FINISHED_CLEANLY
from connector.engine.metadata import BackhaulMetadata, WorkerReport
from tests.contract.seams import assert_has, assert_in_order, calls, found, parameters
from tests.contract.worker_bench import OPTIONS

BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"

SIGNATURES = {
    f"{BASE}:KVConnectorBase_V1.bind_kv_cache_manager": ["self", "kv_cache_manager"],
    f"{BASE}:KVConnectorBase_V1.build_connector_worker_meta": ["self"],
    f"{BASE}:KVConnectorBase_V1.has_pending_block_frees": ["self"],
    f"{BASE}:KVConnectorBase_V1.has_pending_push_work": ["self"],
    f"{BASE}:KVConnectorBase_V1.on_new_request": ["self", "request"],
    f"{BASE}:KVConnectorBase_V1.get_transfer_results": ["self", "finished_req_ids"],
    f"{BASE}:KVConnectorBase_V1.update_connector_output": ["self", "connector_output"],
    f"{BASE}:KVConnectorWorkerMetadata.aggregate": ["self", "other"],
    "vllm.v1.core.block_pool:BlockPool.touch": ["self", "blocks"],
    "vllm.v1.core.block_pool:BlockPool.free_blocks": ["self", "ordered_blocks"],
    "vllm.v1.core.block_pool:BlockPool.get_num_free_blocks": ["self"],
    "vllm.v1.core.kv_cache_manager:KVCacheManager.get_blocks": ["self", "request_id"],
    "vllm.v1.engine.core:EngineCoreProc.run_busy_loop": ["self"],
}


@pytest.mark.parametrize("path", SIGNATURES, ids=lambda path: path.rpartition(":")[2])
def test_signature(path: str) -> None:
    assert parameters(path) == SIGNATURES[path], f"seam moved: {path} takes other parameters"


# ---------------------------------------------------------------- the scheduler's order


def test_failed_loads_are_marked_before_the_connector_hears_of_them() -> None:
    """The quarantine then still finds the request's blocks, and recompute is already decided."""
    steps = ["self._handle_failed_recving(", "self._update_from_kv_xfer_finished("]
    assert_in_order(f"{SCHEDULER}.update_from_output", steps)


def test_the_connector_hears_of_results_before_any_block_is_freed() -> None:
    steps = ["self.connector.update_connector_output(", "finished_recving", "self._free_blocks(", "finished_sending"]
    assert_in_order(f"{SCHEDULER}._update_from_kv_xfer_finished", steps)


def test_a_failed_load_recomputes_from_zero() -> None:
    assert_has(f"{SCHEDULER}._handle_failed_recving", "request.num_computed_tokens = 0")


def test_matching_allocation_and_metadata_are_one_step() -> None:
    """A fence word that was assigned reaches the workers before the request can end."""
    steps = ["get_num_new_matched_tokens(", "update_state_after_alloc(", "_build_kv_connector_meta("]
    assert_in_order(f"{SCHEDULER}.schedule", steps)
    assert calls(f"{SCHEDULER}._build_kv_connector_meta", "build_connector_meta")


def test_a_core_with_push_work_keeps_stepping() -> None:
    assert_has("vllm.v1.core.sched.scheduler", "self.connector.has_pending_push_work()")


def test_pending_frees_are_asked_for_before_a_preemption() -> None:
    assert_in_order(f"{SCHEDULER}.schedule", ["self.connector.has_pending_block_frees()", "_preempt_request("])


def test_workers_report_after_their_results() -> None:
    path = "vllm.v1.worker.kv_connector_model_runner_mixin:KVConnectorModelRunnerMixin._get_kv_connector_output"
    assert_in_order(path, ["start_load_kv(", "get_transfer_results(", "build_connector_worker_meta()"])


@pytest.mark.parametrize(
    "field", ["finished_sending", "finished_recving", "failed_recving", "kv_connector_worker_meta"]
)
def test_connector_output(field: str) -> None:
    fields = found("vllm.v1.outputs:KVConnectorOutput").__dataclass_fields__
    assert field in fields, f"seam moved: KVConnectorOutput.{field}"


def test_block_lists_are_groups_of_blocks_with_ids_and_nulls() -> None:
    assert {"block_id", "is_null"} <= set(found("vllm.v1.core.kv_cache_utils:KVCacheBlock").__dataclass_fields__)
    assert "blocks" in found("vllm.v1.core.kv_cache_manager:KVCacheBlocks").__dataclass_fields__
    assert_has("vllm.v1.core.block_pool:BlockPool.__init__", "self.num_gpu_blocks")


def test_requests_that_ended_well_are_told_from_aborted_ones() -> None:
    status = found("vllm.v1.request:RequestStatus")
    assert set(FINISHED_CLEANLY) == {status.FINISHED_STOPPED, status.FINISHED_LENGTH_CAPPED}
    assert status.FINISHED_ABORTED not in FINISHED_CLEANLY


def test_a_failed_load_may_be_recomputed_by_configuration() -> None:
    config = found("vllm.config:KVTransferConfig")
    assert "recompute" in str(config.__annotations__["kv_load_failure_policy"])
    assert {"kv_role", "kv_load_failure_policy"} <= set(config.__dataclass_fields__)
    assert parameters("vllm.config:KVTransferConfig.get_from_extra_config") == ["self", "key", "default"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("vllm.lora.request:LoRARequest", {"lora_name", "lora_path"}),
        ("vllm.multimodal.inputs:MultiModalFeatureSpec", {"identifier", "mm_position"}),
        ("vllm.multimodal.inputs:PlaceholderRange", {"offset", "length"}),
    ],
)
def test_what_seeds_digests(path: str, fields: set[str]) -> None:
    kind = found(path)
    known = set(getattr(kind, "__struct_fields__", ())) | set(getattr(kind, "__dataclass_fields__", ()))
    assert fields <= known, f"seam moved: {path} lacks {fields - known}"


# ---------------------------------------------------------------- CPU machines


def test_the_cores_input_queue_is_where_an_idle_wait_finds_it() -> None:
    assert_has("vllm.v1.engine.core:EngineCoreProc.__init__", "self.input_queue = queue.Queue")
    assert hasattr(queue.Queue(), "not_empty")
    for name in ("EngineCoreProc", "DPEngineCoreProc"):
        assert_in_order(
            f"vllm.v1.engine.core:{name}.run_busy_loop",
            ["self._process_input_queue()", "self._process_engine_step()"],
        )


def test_nixls_agent_is_configured_through_the_name_that_we_replace() -> None:
    assert_has(f"{base_worker.__name__}:NixlBaseConnectorWorker.__init__", " nixl_agent_config(")


def test_the_broadcast_yields_through_the_name_that_we_replace() -> None:
    assert callable(found(f"{shm_broadcast.__name__}:sched_yield"))
    assert_has(shm_broadcast.__name__, " sched_yield()")


def test_readers_of_the_broadcast_wait_through_the_method_that_we_replace() -> None:
    assert parameters(f"{shm_broadcast.__name__}:SpinCondition.wait") == ["self", "timeout_ms"]
    assert_has(f"{shm_broadcast.__name__}:SpinCondition.wait", "self.last_read + self.busy_loop_s")
    assert_has(f"{shm_broadcast.__name__}:MessageQueue.acquire_read", "self._spin_condition.wait(timeout_ms=")
    assert_has(f"{shm_broadcast.__name__}:MessageQueue.enqueue", "self._spin_condition.notify()")


@pytest.fixture
def stock_loops(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Both replaced names, put back after the test, and the broadcast's wait with them."""
    agent_config, pause = base_worker.nixl_agent_config, shm_broadcast.sched_yield
    stock = agent_config.func if isinstance(agent_config, functools.partial) else agent_config
    monkeypatch.setattr(base_worker, "nixl_agent_config", stock)
    monkeypatch.setattr(shm_broadcast, "sched_yield", pause)
    condition = shm_broadcast.SpinCondition
    monkeypatch.setattr(condition, "wait", getattr(condition.wait, "stock", condition.wait))
    return stock, pause


def test_cpu_options_stop_both_busy_loops_once(stock_loops: tuple[Any, Any]) -> None:
    options = structs.replace(OPTIONS, idle_poll_ms=5.0, cpu_yield_ms=0.1)
    for _ in range(2):
        apply_cpu_options(options)
        configured = base_worker.nixl_agent_config
        assert isinstance(configured, functools.partial)
        assert (configured.func, configured.keywords) == (stock_loops[0], {"enable_prog_thread": False})
    assert shm_broadcast.sched_yield is not stock_loops[1]
    shm_broadcast.sched_yield()
    assert not hasattr(shm_broadcast.SpinCondition.wait.stock, "stock")


@pytest.fixture
def calmed_reader(stock_loops: tuple[Any, Any]) -> Any:
    """Looks at its broadcast for a minute, as a stock one does for a second, and is never notified.

    ``polls``: the times that it waits, in ms.
    """
    apply_cpu_options(structs.replace(OPTIONS, cpu_yield_ms=0.1))
    reader = shm_broadcast.SpinCondition.__new__(shm_broadcast.SpinCondition)
    reader.is_reader, reader.busy_loop_s = True, 60
    reader.read_cancel_socket = reader.local_notify_socket = None
    reader.polls = []
    reader.poller = SimpleNamespace(poll=lambda timeout: reader.polls.append(timeout) or [])
    return reader


def test_a_calmed_reader_looks_for_the_next_message_right_after_one(calmed_reader: Any) -> None:
    calmed_reader.last_read = time.monotonic() + 60
    calmed_reader.wait(timeout_ms=700)
    assert calmed_reader.polls == []


def test_a_calmed_reader_naps_where_a_stock_one_spins_and_outlives_a_lost_notification(calmed_reader: Any) -> None:
    calmed_reader.last_read = time.monotonic() - 1
    calmed_reader.wait(timeout_ms=700)
    assert calmed_reader.polls == [NAP_MS]


def test_a_calmed_reader_rests_like_a_stock_one_in_the_end(calmed_reader: Any) -> None:
    calmed_reader.last_read = time.monotonic() - 61
    calmed_reader.wait(timeout_ms=700)
    assert calmed_reader.polls == [700]


def test_accelerators_keep_vllms_own_loops(stock_loops: tuple[Any, Any]) -> None:
    apply_cpu_options(OPTIONS)
    assert (base_worker.nixl_agent_config, shm_broadcast.sched_yield) == stock_loops


# ---------------------------------------------------------------- the façade


def test_it_is_named_as_vllm_tests_for_and_keeps_its_class() -> None:
    assert NixlConnector.__name__ == "NixlConnector"
    assert issubclass(NixlConnector, NixlPullConnector)
    assert issubclass(NixlConnector, SupportsHMA)
    assert_has("vllm.config.vllm", "has_connector('NixlConnector')")
    assert_has("vllm.platforms.cpu", "'NixlConnector'")


def test_metadata_and_reports_are_of_the_classes_that_vllm_asserts_on() -> None:
    assert issubclass(BackhaulMetadata, found(f"{BASE}:KVConnectorMetadata"))
    assert issubclass(WorkerReport, found(f"{BASE}:KVConnectorWorkerMetadata"))


def a_facade(scheduler: Any = None, worker: Any = None) -> NixlConnector:
    facade = object.__new__(NixlConnector)
    facade._scheduler = facade.connector_scheduler = scheduler
    facade._worker = facade.connector_worker = worker
    return facade


def test_the_scheduler_side_binds_the_cache_and_answers_for_pending_frees() -> None:
    bound: list[Any] = []
    is_giving = False
    scheduler = SimpleNamespace(bind_kv_cache_manager=bound.append, relieve=lambda: is_giving)
    facade = a_facade(scheduler)
    manager = SimpleNamespace(block_pool="pool")
    facade.bind_kv_cache_manager(manager)
    assert bound == [manager]
    assert facade.has_pending_block_frees() is False
    is_giving = True
    assert facade.has_pending_block_frees() is True
    assert facade.build_connector_worker_meta() is None


def test_the_worker_side_hands_out_its_report() -> None:
    report = WorkerReport(reads=["r"])
    facade = a_facade(worker=SimpleNamespace(take_report=lambda: report))
    assert facade.build_connector_worker_meta() is report
    assert facade.has_pending_block_frees() is False


def test_another_vllm_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "__version__", "0.33.0")
    with pytest.raises(RuntimeError, match="newer than any that was checked"):
        NixlConnector(None, None, None)
