"""Seams of vLLM's core: the connector's interface, order of steps, blocks, requests, configuration, CPU loops."""

from tests.contract.releases import places as at
from tests.contract.releases.seam import Names, Order, Seam, Signature, State

HOOKS: list[Seam] = [
    *[
        Signature(f"connector.{name}", at.BASE, name, use)
        for name, use in {
            "__init__": "our façade's construction",
            "on_new_request": "opening a leg before vLLM starts heartbeats",
            "get_num_new_matched_tokens": "verifying an offer",
            "update_state_after_alloc": "starting a pull",
            "build_connector_meta": "sending orders to the workers",
            "build_connector_worker_meta": "the workers' reports",
            "update_connector_output": "hearing of ended pulls and leases",
            "get_transfer_results": "naming a failed receive",
            "get_finished": "results of older releases",
            "get_block_ids_with_load_errors": "naming a failed receive by its blocks",
            "bind_kv_cache_manager": "leases and quarantine on the cache",
            "bind_gpu_block_pool": "leases and quarantine on the cache, of older releases",
            "has_pending_block_frees": "sparing a request its preemption while a lease ends",
            "has_pending_push_work": "keeping a core stepping while a cache reset waits",
            "set_xfer_handshake_metadata": "learning the fence's addresses, of older releases",
            "set_xfer_handshake_metadata_pp_aware": "learning the fence's addresses",
        }.items()
    ],
    Signature("worker report: aggregate", at.WORKER_META, "aggregate", "the workers' reports, over ranks"),
    Names("roles", at.ROLES, ("SCHEDULER", "WORKER"), "which half to build"),
    Names(
        "results by request",
        at.RESULTS,
        ("finished_sending", "finished_recving", "failed_recving"),
        "naming a failed receive",
    ),
    Names("hybrid caches", at.CONNECTOR_BASE_MODULE, ("SupportsHMA",), "models with several cache groups"),
    Order("module path", at.FACTORY, "", ("kv_connector_module_path",), "being loaded out of tree"),
]
SCHEDULER: list[Seam] = [
    Order(
        "core: the block pool is bound",
        at.CORE_SCHEDULER,
        "__init__",
        ("self.connector.bind_gpu_block_pool(",),
        "leases and quarantine on the cache, of older releases",
    ),
    Order(
        "core: the cache manager is bound",
        at.CORE_SCHEDULER,
        "__init__",
        ("bind_kv_cache_manager(",),
        "leases and quarantine on the cache",
    ),
    Order("core: arrivals are announced", at.CORE_SCHEDULER, "", ("connector.on_new_request(",), "opening a leg"),
    Order(
        "core: matching, allocation and metadata are one step",
        at.CORE_SCHEDULER,
        "schedule",
        (
            "connector.get_num_new_matched_tokens(",
            " self.connector.update_state_after_alloc(",
            "_build_kv_connector_meta(",
        ),
        "raising a fence word before its request can end",
    ),
    Order(
        "core: failed receives are named",
        at.CORE_SCHEDULER,
        "update_from_output",
        ("self._handle_failed_recving(", "self._update_from_kv_xfer_finished("),
        "quarantine, and recompute from zero",
    ),
    Order(
        "core: failed blocks are handled before the connector hears",
        at.CORE_SCHEDULER,
        "update_from_output",
        ("self._handle_invalid_blocks(", "self._update_from_kv_xfer_finished("),
        "recompute from zero, of older releases",
    ),
    Order(
        "core: the connector hears before blocks are freed",
        at.CORE_SCHEDULER,
        "_update_from_kv_xfer_finished",
        ("connector.update_connector_output(", "finished_recving", "self._free_blocks(", "finished_sending"),
        "quarantine",
    ),
    Order(
        "core: nothing loaded, nothing kept",
        at.CORE_SCHEDULER,
        "_update_waiting_for_remote_kv",
        ("in self.failed_recving_kv_req_ids", "if request.num_computed_tokens:", "self.kv_cache_manager.free(request)"),
        "recompute from zero, of older releases",
    ),
    Order(
        "core: a failed receive recomputes from its first failed block",
        at.CORE_SCHEDULER,
        "_update_requests_with_invalid_blocks",
        ("if block_id not in invalid_block_ids", "request.num_computed_tokens = idx * self.block_size"),
        "recompute from zero, of older releases",
    ),
    Order(
        "core: steps while leases are held",
        at.CORE_SCHEDULER,
        "has_finished_requests",
        ("len(self.requests) >",),
        "ending a lease in time on an idle engine",
    ),
    Order(
        "core: steps while work is pending",
        at.CORE_SCHEDULER,
        "has_requests",
        ("self.connector.has_pending_push_work()",),
        "keeping a core stepping while a cache reset waits",
    ),
    Order(
        "core: asks before it preempts",
        at.CORE_SCHEDULER,
        "schedule",
        ("has_pending_block_frees()", "_preempt_request("),
        "sparing a request its preemption while a lease ends",
    ),
    Order(
        "core: loop takes in requests, then steps",
        at.CORE,
        "run_busy_loop",
        ("self._process_input_queue()", "self._process_engine_step()"),
        "waiting on an idle engine until a request comes",
    ),
    Signature(
        "core: takes in requests", at.CORE, "_process_input_queue", "waiting on an idle engine until a request comes"
    ),
    Names("core: wake-up message", at.CORE_MESSAGES, ("WAKEUP",), "waking an idle engine for a cache reset"),
    State("core: input queue", at.CORE, ("input_queue",), "waiting on an idle engine for a request"),
    Order(
        "core: addresses by stage and rank",
        at.ENGINE_CORE,
        "__init__",
        ("set_xfer_handshake_metadata_pp_aware(content)",),
        "learning the fence's addresses",
    ),
    Order(
        "workers: results by request, then report",
        at.MIXIN,
        "_get_kv_connector_output",
        ("start_load_kv(", "get_transfer_results(", "build_connector_worker_meta()"),
        "the order of a worker's step",
    ),
    Order(
        "workers: results, blocks with errors, then report",
        at.MIXIN,
        "_get_kv_connector_output",
        ("start_load_kv(", "get_finished(", "get_block_ids_with_load_errors()", "build_connector_worker_meta()"),
        "the order of a worker's step, of older releases",
    ),
    Names(
        "output: what the core hears",
        at.OUTPUT,
        ("finished_sending", "finished_recving", "kv_connector_worker_meta", "invalid_block_ids"),
        "ends of pulls and leases",
    ),
    Names("output: failed receives", at.OUTPUT, ("failed_recving",), "quarantine"),
    Names("step", at.STEP, ("num_scheduled_tokens", "total_num_scheduled_tokens"), "pacing idle steps"),
]
BLOCKS: list[Seam] = [
    Signature("blocks.touch", at.BLOCK_POOL, "touch", "quarantine"),
    Signature("blocks.free_blocks", at.BLOCK_POOL, "free_blocks", "quarantine"),
    Signature("blocks.get_num_free_blocks", at.BLOCK_POOL, "get_num_free_blocks", "making room for requests"),
    Signature("blocks.get_cached_block", at.BLOCK_POOL, "get_cached_block", "making room for requests"),
    Signature("blocks.reset_prefix_cache", at.BLOCK_POOL, "reset_prefix_cache", "a cache reset, of older releases"),
    Signature("cache.reset_prefix_cache", at.CACHE_MANAGER, "reset_prefix_cache", "a cache reset"),
    Signature("cache.get_blocks", at.CACHE_MANAGER, "get_blocks", "quarantine"),
    State("blocks: number", at.BLOCK_POOL, ("num_gpu_blocks",), "the limit of leased blocks"),
    State("cache: its pool", at.CACHE_MANAGER, ("block_pool",), "making room for requests"),
    Names("blocks: one", at.CACHE_BLOCK, ("block_id", "is_null", "ref_cnt"), "quarantine, making room"),
    Names("blocks: of a request", at.CACHE_BLOCKS, ("blocks",), "quarantine"),
    Names(
        "cache: kinds",
        at.CACHE_SPECS,
        ("FullAttentionSpec", "MLAAttentionSpec", "SlidingWindowSpec", "MambaSpec", "UniformTypeKVCacheSpecs"),
        "telling which prefixes are exact",
    ),
    Names("cache: a group", at.CACHE_GROUP, ("kv_cache_spec", "layer_names"), "sizes of blocks"),
    Names("cache: groups", at.CACHE_CONFIG, ("kv_cache_groups",), "telling which prefixes are exact"),
]
REQUESTS: list[Seam] = [
    State(
        "request: what it holds",
        at.REQUEST,
        (
            *("request_id", "kv_transfer_params", "num_prompt_tokens", "prompt_token_ids", "all_token_ids", "status"),
            *("num_computed_tokens", "lora_request", "cache_salt", "mm_features", "skip_reading_prefix_cache"),
            *("block_hashes", "num_tokens"),
        ),
        "digests, matching and lease grants",
    ),
    Names(
        "request: statuses",
        at.STATUS,
        ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED", "WAITING_FOR_REMOTE_KVS"),
        "keeping blocks only of requests that ended well",
    ),
    Names(
        "configuration: transfer",
        at.TRANSFER_CONFIG,
        ("kv_role", "kv_load_failure_policy", "get_from_extra_config", "engine_id", "enable_permute_local_kv"),
        "start-up options",
    ),
    Names(
        "configuration: parallelism",
        at.PARALLEL_CONFIG,
        ("tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size"),
        "what an offer says of its engine",
    ),
    Names(
        "configuration: model",
        at.MODEL_CONFIG,
        (
            *("model", "revision", "dtype", "quantization", "served_model_name", "use_mla", "get_head_size"),
            *("get_total_num_kv_heads", "get_total_num_hidden_layers"),
        ),
        "the fingerprint that digests start from",
    ),
]
CPU: list[Seam] = [
    Names("broadcast: yield", at.BROADCAST, ("sched_yield", "SpinCondition"), "calming readers on CPUs"),
    Signature("broadcast: a reader's wait", at.SPIN_CONDITION, "wait", "calming readers on CPUs"),
    State("broadcast: how long it spins", at.SPIN_CONDITION, ("busy_loop_s",), "calming readers on CPUs"),
    Order("broadcast: yields by that name", at.BROADCAST, "", (" sched_yield()",), "calming readers on CPUs"),
]

CORE_SEAMS: list[Seam] = [*HOOKS, *SCHEDULER, *BLOCKS, *REQUESTS, *CPU]
