"""Seams of vLLM's NIXL connector: what our halves extend, override, call, read or write there."""

from tests.contract.releases import places as at
from tests.contract.releases.seam import Holds, Keys, Names, Order, Seam, Signature, State
from tests.contract.releases.sources import Place

SCHEDULER_METHODS = {
    "__init__": "our scheduler half's construction",
    "on_new_request": "opening a leg before vLLM starts heartbeats",
    "get_num_new_matched_tokens": "verifying an offer",
    "update_state_after_alloc": "starting a pull",
    "build_connector_meta": "sending orders to the workers",
    "update_connector_output": "hearing of ended pulls and leases",
    "request_finished": "granting a lease",
    "set_xfer_handshake_metadata": "learning the fence's addresses",
    "has_pending_push_work": "keeping a core stepping while a cache reset waits",
    "shutdown": "closing the agent's socket",
    "_stop_heartbeat": "declining a lease",
    "_prefill_backoff": "leaving a windowed prompt's last token to D",
}
SCHEDULER_STATE = {
    "reading engine facts for offers": (
        "block_size",
        "engine_id",
        "side_channel_host",
        "side_channel_port",
        "vllm_config",
    ),
    "pacing idle steps and declining leases": ("_reqs_need_recv", "_reqs_need_send", "_reqs_not_processed"),
    "lease times of one request": ("_kv_lease_duration", "decoder_kv_blocks_ttl"),
    "renewing a handoff as often as its live duration asks": ("_heartbeat_interval",),
    "an offer's transfer ranks": ("transfer_tp_size",),
}
WORKER_METHODS = {
    "__init__": "our worker half's construction",
    "register_kv_caches": "registering the fence before the handshake",
    "start_load_kv": "orders before and after vLLM posts its READs",
    "get_transfer_results": "deadlines, the fence and lease ends around vLLM's poll",
    "get_finished": "the same, where vLLM has no results by request",
    "get_block_ids_with_load_errors": "naming a failed receive by its blocks",
    "_read_blocks_for_req": "dropping a pull that was given up",
    "_is_turn2_read_expired": "telling an expiry from a failure",
    "_handle_failed_transfer": "giving a failed pull its reason",
}
WORKER_STATE = {
    "the delegating NIXL agent": ("nixl_wrapper", "nixl_backends", "xfer_handshake_metadata"),
    "the renewal that a heartbeat brings": ("_lease_extension",),
    "moving, releasing and expiring leases": (
        "_reqs_to_send",
        "_reqs_to_process",
        "consumer_notification_counts_by_req",
    ),
    "counting several readers": ("expected_consumer_notifications_by_req",),
    "pulls and their failures": ("_recving_metadata", "_recving_transfers", "_failed_recv_reqs"),
    "handing back one pull": ("_recv_failures",),
    "notices to a source": ("_remote_agents", "tp_mappings"),
    "vLLM's own statistics": ("xfer_stats",),
}
ENDPOINT_KEYS = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port")
REMOTE_KEYS = (*ENDPOINT_KEYS, "do_remote_decode", "do_remote_prefill", "_remote_blocks_processed")


def _methods(half: str, where: tuple[Place, ...], used_by: dict[str, str]) -> list[Seam]:
    return [Signature(f"{half}.{name}", where, name, use) for name, use in used_by.items()]


def _state(half: str, where: tuple[Place, ...], used_by: dict[str, tuple[str, ...]]) -> list[Seam]:
    return [State(f"{half}: {names[0]}", where, names, use) for use, names in used_by.items()]


LAYOUT: list[Seam] = [
    Names(
        "nixl: pull classes", at.SPLIT_CLASSES, ("NixlPullConnectorScheduler", "NixlPullConnectorWorker"), "our bases"
    ),
    Signature(
        "worker: peers still read from",
        at.WORKER,
        "_engines_with_inflight_transfers",
        "keeping the peers of late READs",
    ),
    Signature("worker: stale peers", at.WORKER, "_evict_stale_engines", "keeping the peers of late READs"),
    Signature("worker: replaced peers", at.WORKER, "_cleanup_remote_engines", "keeping the peers of late READs"),
    Signature("facade.__init__", at.FACADE, "__init__", "our façade's construction without vLLM's own halves"),
    Signature("facade.on_new_request", at.FACADE, "on_new_request", "opening a leg"),
    Signature("facade.update_connector_output", at.FACADE, "update_connector_output", "hearing of ended pulls"),
    Signature("facade.request_finished_all_groups", at.FACADE, "request_finished_all_groups", "granting a lease"),
    Signature("facade.get_finished", at.FACADE, "get_finished", "results of older releases"),
    Signature("facade.get_transfer_results", at.FACADE, "get_transfer_results", "results of newer releases"),
    Signature("facade.start_load_kv", at.FACADE, "start_load_kv", "the worker half's step"),
    Signature("facade.shutdown", at.FACADE, "shutdown", "closing both halves"),
    Order(
        "facade: forwards to its halves",
        at.FACADE,
        "build_connector_meta",
        ("self.connector_scheduler.build_connector_meta(scheduler_output)",),
        "our halves in place of vLLM's",
    ),
]
METADATA: list[Seam] = [
    State(
        "metadata: lists of requests",
        (Place(at.METADATA, "NixlConnectorMetadata"),),
        ("reqs_to_recv", "reqs_to_send", "reqs_in_batch", "reqs_not_processed"),
        "the orders that ride on vLLM's metadata",
    ),
    Names(
        "metadata: a receive",
        (Place(at.METADATA, "ReqMeta"),),
        ("local_block_ids", "remote"),
        "pulls, and what is recomputed when one fails",
    ),
    Names("metadata: a receive that is waited for", (Place(at.METADATA, "ReqMeta"),), ("awaiting_kvs",), "deadlines"),
    Names(
        "metadata: a source",
        (Place(at.METADATA, "RemoteMeta"),),
        ("block_ids", "engine_id", "host", "port", "request_id"),
        "notices to a source",
    ),
    Names(
        "metadata: the source's expiry", (Place(at.METADATA, "RemoteMeta"),), ("blocks_expiry_time",), "early declines"
    ),
    Names(
        "metadata: what a handshake carries",
        (Place(at.METADATA, "NixlHandshakePayload"),),
        ("compatibility_hash", "agent_metadata_bytes"),
        "the fence's address and the layout that peers compare",
    ),
    Names(
        "metadata: what an agent says of its memory",
        (Place(at.METADATA, "NixlAgentMetadata"),),
        ("block_lens", "kv_cache_layout"),
        "the layout that peers compare",
    ),
]
PARAMS: list[Seam] = [
    Keys(
        "params: at allocation",
        at.SCHEDULER,
        ("update_state_after_alloc", "request_finished"),
        REMOTE_KEYS,
        "offers written back as what vLLM may use",
    ),
    Keys(
        "params: of a receive",
        (Place(at.METADATA, "NixlConnectorMetadata"),),
        ("add_new_req_to_recv", "_add_new_req"),
        (*ENDPOINT_KEYS, "tp_size"),
        "offers written back as what vLLM may use",
    ),
    Keys(
        "params: expiry of a receive",
        (Place(at.METADATA, "NixlConnectorMetadata"),),
        ("add_new_req_to_recv",),
        ("remote_blocks_expiry_time",),
        "early declines",
    ),
    Keys(
        "params: of an answer",
        at.SCHEDULER,
        ("request_finished",),
        (*ENDPOINT_KEYS, "remote_num_tokens", "tp_size"),
        "offers made of what vLLM exports",
    ),
]
READS: list[Seam] = [
    Names("reads: a rank's part", at.READ_SPEC, ("remote_rank",), "comparing the fence word of that rank"),
    Names("reads: ranks that read", at.TP_MAPPING, ("all_source_ranks",), "notices to a source"),
    Names("reads: how many readers", at.TP_MAPPING, ("local_consumers",), "notices to a source"),
    Holds(
        "reads: named by keyword",
        at.WORKER,
        "_read_blocks_for_req",
        ("self._read_blocks(", "read_spec=", "dst_engine_id=", "request_id="),
        "knowing whose READ NIXL sees next",
    ),
    Order(
        "reads: prepared with the notice, then posted",
        at.WORKER,
        "_read_blocks",
        ("make_prepped_xfer('READ'", ".transfer(handle)"),
        "holding the notice back until the fence has answered",
    ),
    Order(
        "reads: agents by stage and rank",
        at.WORKER,
        "_read_blocks",
        ("self._remote_agents[dst_engine_id][0, remote_rank]",),
        "the peer's agent, for the fence",
    ),
    Order(
        "reads: the last blocks of the source are taken",
        at.WORKER,
        "",
        ("[-num_",),
        "cutting an offer at the common prefix, from its end",
    ),
    Order(
        "reads: polled by state",
        at.WORKER,
        "_pop_done_transfers",
        ("check_xfer_state(handle)", "'DONE'", "get_xfer_telemetry(handle)", "'PROC'", "_handle_failed_transfer("),
        "reporting a fenced READ as failed",
    ),
    Order(
        "notices: request and number of readers",
        at.WORKER,
        "_get_new_notifs",
        ("nixl_wrapper.get_new_notifs()", "rsplit(':', 1)"),
        "holding back read notices of kept leases",
    ),
    Order("notices: heartbeats", at.WORKER, "_get_new_notifs", ("startswith('HB:')",), "announcing a READ"),
    Holds(
        "leases: on the worker's own clock",
        at.WORKER,
        "",
        ("perf_counter()", "del self._reqs_to_send[req_id]", "record_kv_expired_req()"),
        "moving the deadline of a held lease",
    ),
    Order("leases: expire in any order", at.WORKER, "_reap_expired_send_leases", ("self._reqs_to_send",), "own TTLs"),
    Order(
        "leases: a step reads, forgets, then holds",
        at.WORKER,
        "start_load_kv",
        ("metadata.reqs_to_recv.items()", "metadata.reqs_not_processed", "metadata.reqs_to_send.items()"),
        "a release in the step of its grant",
    ),
    Order(
        "pulls: one per request",
        at.SCHEDULER,
        "update_state_after_alloc",
        (
            "params.get('remote_block_ids')",
            "params['do_remote_prefill'] = False",
            "['_remote_blocks_processed'] = True",
        ),
        "never matching a request again after its pull",
    ),
    Order(
        "pulls: into the blocks without a hash",
        at.SCHEDULER,
        "update_state_after_alloc",
        ("get_unhashed_block_ids_all_groups()", "if num_external_tokens > 0"),
        "pulling only what isn't cached here",
    ),
    Names(
        "stats: what is counted",
        at.STATS,
        ("record_failed_transfer", "record_kv_expired_req", "record_transfer"),
        "vLLM's own statistics",
    ),
    Names("agent configuration", at.WORKER_MODULES, ("nixl_agent_config",), "stopping NIXL's progress thread on CPUs"),
]

NIXL_SEAMS: list[Seam] = [
    *LAYOUT,
    *_methods("scheduler", at.SCHEDULER, SCHEDULER_METHODS),
    *_state("scheduler", at.SCHEDULER, SCHEDULER_STATE),
    *_methods("worker", at.WORKER, WORKER_METHODS),
    *_state("worker", at.WORKER, WORKER_STATE),
    *METADATA,
    *PARAMS,
    *READS,
]
