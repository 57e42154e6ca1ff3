"""Every seam of vLLM 0.32's NIXL connector and of NIXL that we override or call is where and as we rely on it."""

import pytest
import vllm

from connector.engine.versions import RELEASES, require_release
from connector.protocol import MIN_TTL_SECONDS
from tests.contract.seams import assert_has, assert_in_order, calls, found, parameters

NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
SCHEDULER = f"{NIXL}.pull_scheduler:NixlPullConnectorScheduler"
WORKER = f"{NIXL}.pull_worker:NixlPullConnectorWorker"
BASE_SCHEDULER = f"{NIXL}.base_scheduler:NixlBaseConnectorScheduler"
BASE_WORKER = f"{NIXL}.base_worker:NixlBaseConnectorWorker"
AGENT = "nixl._api:nixl_agent"

SIGNATURES = {
    f"{SCHEDULER}.__init__": ["self", "vllm_config", "engine_id", "kv_cache_config"],
    f"{SCHEDULER}.on_new_request": ["self", "request"],
    f"{SCHEDULER}.get_num_new_matched_tokens": ["self", "request", "num_computed_tokens"],
    f"{SCHEDULER}.update_state_after_alloc": ["self", "request", "blocks", "num_external_tokens"],
    f"{SCHEDULER}.build_connector_meta": ["self", "scheduler_output"],
    f"{SCHEDULER}.update_connector_output": ["self", "connector_output"],
    f"{SCHEDULER}.request_finished": ["self", "request", "block_ids"],
    f"{SCHEDULER}.set_xfer_handshake_metadata": ["self", "metadata"],
    f"{SCHEDULER}.has_pending_push_work": ["self"],
    f"{SCHEDULER}.shutdown": ["self"],
    f"{SCHEDULER}._stop_heartbeat": ["self", "req_id"],
    f"{WORKER}.__init__": ["self", "vllm_config", "engine_id", "kv_cache_config"],
    f"{WORKER}.register_kv_caches": ["self", "kv_caches"],
    f"{WORKER}.start_load_kv": ["self", "metadata"],
    f"{WORKER}.get_transfer_results": ["self"],
    f"{WORKER}._read_blocks_for_req": ["self", "req_id", "meta"],
    f"{WORKER}._is_turn2_read_expired": ["self", "meta"],
    f"{WORKER}._handle_failed_transfer": [
        "self",
        "req_id",
        "handle",
        "failed_req_ids",
        "record_failed_transfer",
    ],
    f"{NIXL}.connector:NixlBaseConnector.__init__": ["self", "vllm_config", "role", "kv_cache_config"],
    f"{NIXL}.stats:NixlKVConnectorStats.record_kv_expired_req": ["self"],
    f"{NIXL}.stats:NixlKVConnectorStats.record_failed_transfer": ["self"],
}


@pytest.mark.parametrize("path", SIGNATURES, ids=lambda path: path.rpartition(":")[2])
def test_signature(path: str) -> None:
    assert parameters(path) == SIGNATURES[path], f"seam moved: {path} takes other parameters"


def test_this_vllm_is_one_that_was_checked() -> None:
    assert require_release(vllm.__version__) is list(RELEASES.values())[-1]


# ---------------------------------------------------------------- state of vLLM's that we read or write

WORKER_STATE = [
    "nixl_wrapper",
    "nixl_backends",
    "_lease_extension",
    "_reqs_to_send",
    "_reqs_to_process",
    "consumer_notification_counts_by_req",
    "expected_consumer_notifications_by_req",
    "_recving_metadata",
    "_recving_transfers",
    "_recv_failures",
    "_remote_agents",
    "xfer_stats",
]
SCHEDULER_STATE = [
    "_kv_lease_duration",
    "decoder_kv_blocks_ttl",
    "_reqs_need_recv",
    "_reqs_need_send",
    "_reqs_not_processed",
    "block_size",
    "engine_id",
    "side_channel_host",
    "side_channel_port",
    "transfer_tp_size",
    "vllm_config",
]


@pytest.mark.parametrize("name", WORKER_STATE)
def test_worker_state(name: str) -> None:
    assert_has(f"{BASE_WORKER}.__init__", f"self.{name}")


@pytest.mark.parametrize("name", SCHEDULER_STATE)
def test_scheduler_state(name: str) -> None:
    assert_has(f"{BASE_SCHEDULER}.__init__", f"self.{name}")


def test_handshake_metadata_is_made_while_caches_are_registered() -> None:
    assert_has(f"{BASE_WORKER}.register_kv_caches", "self.xfer_handshake_metadata = NixlHandshakePayload(")
    payload = found(f"{NIXL}.metadata:NixlHandshakePayload")
    assert list(payload.__dataclass_fields__) == ["compatibility_hash", "agent_metadata_bytes"]


# ---------------------------------------------------------------- what vLLM does around our overrides


def test_blocks_are_read_with_keywords_that_name_the_rank() -> None:
    for call in calls(f"{WORKER}._read_blocks_for_req", "_read_blocks"):
        given = {keyword.arg for keyword in call.keywords}
        assert {"read_spec", "dst_engine_id", "request_id"} <= given, "seam moved: _read_blocks is called otherwise"
    assert "remote_rank" in found(f"{NIXL}.tp_mapping:ReadSpec").__dataclass_fields__


def test_a_read_is_prepared_with_its_notice_and_then_posted() -> None:
    assert_in_order(f"{WORKER}._read_blocks", ["make_prepped_xfer('READ'", ".transfer(handle)"])
    for call in calls(f"{WORKER}._read_blocks", "make_prepped_xfer"):
        assert [keyword.arg for keyword in call.keywords] == ["notif_msg"], "seam moved: a READ carries its notice"


def test_a_pull_is_done_err_or_under_way_and_an_exception_is_a_failure() -> None:
    assert_in_order(
        f"{BASE_WORKER}._pop_done_transfers",
        ["check_xfer_state(handle)", "'DONE'", "'PROC'", "_handle_failed_transfer(", "except Exception"],
    )


def test_results_come_from_notices_then_transfers_then_expiries() -> None:
    assert_in_order(
        f"{BASE_WORKER}.get_transfer_results",
        [
            "self._get_new_notifs()",
            "self._pop_done_transfers(self._recving_transfers)",
            "self._failed_recv_reqs",
            "req_id not in self._recving_metadata",
            "req_id not in self._recving_transfers",
            "self._reap_expired_send_leases(done_sending)",
            "failed_recving=failed_recv_reqs",
        ],
    )


def test_a_read_notice_is_request_and_count_and_a_heartbeat_has_its_prefix() -> None:
    assert_in_order(f"{WORKER}._get_new_notifs", ["startswith('HB:')", "rsplit(':', 1)"])
    assert_has(f"{WORKER}._read_blocks", "f'{remote_request_id}:{expected_consumers}'.encode()")


def test_deadlines_of_held_blocks_are_on_the_workers_own_clock() -> None:
    assert_has(f"{BASE_WORKER}._reap_expired_send_leases", "time.perf_counter()")


def test_a_step_reads_then_forgets_then_holds() -> None:
    """A release in the step of the grant finds the blocks held."""
    loops = [f"metadata.{name}" for name in ("reqs_to_recv.items()", "reqs_not_processed", "reqs_to_send.items()")]
    assert_in_order(f"{WORKER}.start_load_kv", loops)


def test_one_pull_per_request_and_a_mark_that_says_so() -> None:
    marks = ["params['do_remote_prefill'] = False", "params['_remote_blocks_processed'] = True"]
    assert_in_order(f"{SCHEDULER}.update_state_after_alloc", marks)


def test_an_empty_list_of_blocks_starts_no_transfer_and_no_notice() -> None:
    assert_has(f"{SCHEDULER}.update_state_after_alloc", "if params.get('remote_block_ids'):")


def test_the_offer_of_a_finished_request_names_its_blocks() -> None:
    assert_has(f"{SCHEDULER}.request_finished", "remote_block_ids=block_ids")


@pytest.mark.parametrize("field", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"])
def test_heartbeats_start_from_remote_fields_at_arrival(field: str) -> None:
    assert_has(f"{BASE_SCHEDULER}.on_new_request", f"params.get('{field}')")


def test_a_ttl_outlives_vllms_safety_margin() -> None:
    margin = found(f"{NIXL}.pull_worker:_KV_BLOCKS_EXPIRY_SAFETY_MARGIN")
    assert margin < MIN_TTL_SECONDS, "a lease of the least TTL could never be read"


# ---------------------------------------------------------------- NIXL itself

NIXL_SIGNATURES = {
    "make_prepped_xfer": [
        "operation",
        "local_xfer_side",
        "local_indices",
        "remote_xfer_side",
        "remote_indices",
        "notif_msg",
    ],
    "initialize_xfer": ["operation", "local_descs", "remote_descs", "remote_agent"],
    "get_xfer_descs": ["descs", "mem_type"],
    "get_reg_descs": ["descs", "mem_type"],
    "transfer": ["handle"],
    "check_xfer_state": ["handle"],
    "get_xfer_telemetry": ["handle"],
    "release_xfer_handle": ["handle"],
    "send_notif": ["remote_agent_name", "notif_msg"],
    "get_new_notifs": [],
}


@pytest.mark.parametrize("method", NIXL_SIGNATURES)
def test_nixl_call(method: str) -> None:
    given, wanted = parameters(f"{AGENT}.{method}")[1:], NIXL_SIGNATURES[method]
    assert given[: len(wanted)] == wanted, f"seam moved: nixl_agent.{method} takes {given}"


def test_nixl_memory_is_registered_with_named_backends() -> None:
    assert "backends" in parameters(f"{AGENT}.register_memory")


def test_nixl_names_three_states() -> None:
    assert_has(f"{AGENT}.check_xfer_state", "'DONE'", "'PROC'", "'ERR'")


def test_nixl_counts_bytes_and_descriptors() -> None:
    telemetry = found("nixl._bindings:nixlXferTelemetry")
    for field in ("totalBytes", "descCount"):
        assert hasattr(telemetry, field), f"seam moved: nixlXferTelemetry.{field}"


def test_nixl_can_do_without_its_progress_thread() -> None:
    assert "enable_prog_thread" in parameters("nixl._api:nixl_agent_config")
