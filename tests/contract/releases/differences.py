"""Every seam that isn't everywhere as in the newest release: since when it is, what it was before, what that means.

``test_release_seams.py`` checks that this table is exact: no difference without an entry, no entry without one.
"""

from dataclasses import dataclass

from tests.contract.releases.seam import Value

ABSENT_NAMES: list[str] = []


@dataclass(frozen=True)
class Difference:
    """``seam`` had ``value`` before release ``since``, from release ``start`` on (else from the oldest).

    ``fact`` is the field of ``versions.Release`` that is false there; ``unsupported`` the policy fields that an engine
    acks as unsupported for it; ``meaning`` says in plain words what ours does instead.
    """

    seam: str
    since: str
    value: Value
    meaning: str
    fact: str = ""
    unsupported: tuple[str, ...] = ()
    start: str = ""


def _hook(seam: str, since: str, meaning: str, fact: str = "", unsupported: tuple[str, ...] = ()) -> Difference:
    return Difference(seam, since, None, meaning, fact, unsupported)


def _names(seam: str, since: str, meaning: str, fact: str = "", unsupported: tuple[str, ...] = ()) -> Difference:
    return Difference(seam, since, ABSENT_NAMES, meaning, fact, unsupported)


def _order(seam: str, since: str, meaning: str, fact: str = "", unsupported: tuple[str, ...] = ()) -> Difference:
    return Difference(seam, since, False, meaning, fact, unsupported)


LATE = "a request arrives when it is first matched (older_facade.LateArrivals)"
NO_HEARTBEATS = "vLLM's fixed 480 s hold a handoff (older_scheduler.WithoutLeaseTimes)"
FORWARDED = "our façade hands it on itself (older_facade)"
BY_RESULTS = "made of get_finished() and our own look at each READ (older_worker.OlderWorkerSeams)"
FROM_ZERO = "named in our worker's report and recomputed from zero (older_scheduler.OlderSchedulerSeams)"
ONE_STAGE = "named by tensor rank; a pipeline has one stage (base_classes.rank_key, RanksWithoutStages)"
POOL = "bound to the block pool, blocks noted at allocation (older_scheduler.PoolBinding)"
AT_NEXT_STEP = "a cache reset or late READ on an engine without requests is followed at its next step"
BY_FENCE = "a reader doesn't know the expiry; the fence alone catches it"
BY_WORLD_SIZE = "vLLM works it out of the reader's world size (base_classes.num_consumers)"
KEEPS_PEERS = "busy peers are stamped as active before vLLM looks (older_worker.OlderWorkerSeams)"
MAY_PREEMPT = "a growing request may be preempted while a lease ends"
NO_COUNT = "kept empty (older_worker.OlderWorkerSeams)"

ARRIVALS, STAGES, SPLIT = "hears_arrivals", "keys_ranks_by_stage", "has_split_classes"
FAILED, REAPS, SPARES = "reports_failed_receives", "reaps_in_any_order", "spares_last_tokens"

DIFFERENCES: tuple[Difference, ...] = (
    # ------------------------------------------------ before 0.22
    _hook("connector.on_new_request", "0.22.0", LATE, ARRIVALS),
    _hook("facade.on_new_request", "0.22.0", LATE, ARRIVALS),
    _hook("scheduler.on_new_request", "0.22.0", LATE, ARRIVALS),
    _order("core: arrivals are announced", "0.22.0", LATE, ARRIVALS),
    _hook("facade.update_connector_output", "0.22.0", FORWARDED, ARRIVALS),
    _hook("scheduler.update_connector_output", "0.22.0", FORWARDED, ARRIVALS),
    _hook("scheduler._stop_heartbeat", "0.22.0", NO_HEARTBEATS, ARRIVALS),
    _order("notices: heartbeats", "0.22.0", "our announcement of a READ is not passed on to vLLM", ARRIVALS),
    _names("worker: _lease_extension", "0.22.0", NO_HEARTBEATS, ARRIVALS, ("kv_lease_duration",)),
    _names("scheduler: _heartbeat_interval", "0.22.0", NO_HEARTBEATS, ARRIVALS, ("kv_lease_duration",)),
    _names("scheduler: _kv_lease_duration", "0.22.0", NO_HEARTBEATS, ARRIVALS, ("kv_lease_duration",)),
    _order(
        "core: steps while leases are held",
        "0.22.0",
        "an engine that only holds leases sleeps: an expiry, and a command, wait for its next request",
        ARRIVALS,
        ("decoder_kv_blocks_ttl",),
    ),
    _hook("connector.bind_gpu_block_pool", "0.22.0", "called where a connector has it, as ours does", ARRIVALS),
    # ------------------------------------------------ before 0.23
    _hook("connector.set_xfer_handshake_metadata_pp_aware", "0.23.0", ONE_STAGE),
    _order("core: addresses by stage and rank", "0.23.0", ONE_STAGE),
    Difference(
        "blocks.free_blocks",
        "0.24.0",
        ["self", "ordered_blocks", "prepend"],
        "its further parameter has a default, and we don't give it",
        start="0.23.0",
    ),
    # ------------------------------------------------ before 0.24
    _names("nixl: pull classes", "0.24.0", "our halves extend the single classes (base_classes)", SPLIT),
    _hook("connector.has_pending_push_work", "0.24.0", AT_NEXT_STEP, SPLIT),
    _hook("scheduler.has_pending_push_work", "0.24.0", AT_NEXT_STEP, SPLIT),
    _order("core: steps while work is pending", "0.24.0", AT_NEXT_STEP, SPLIT),
    _hook("worker: stale peers", "0.24.0", "peers are never forgotten", SPLIT),
    # ------------------------------------------------ before 0.26
    _order("reads: agents by stage and rank", "0.26.0", ONE_STAGE, STAGES),
    _hook("worker._is_turn2_read_expired", "0.26.0", BY_FENCE, STAGES),
    _names("metadata: the source's expiry", "0.26.0", BY_FENCE, STAGES),
    _names("params: expiry of a receive", "0.26.0", BY_FENCE, STAGES),
    # ------------------------------------------------ before 0.29
    _names("worker: expected_consumer_notifications_by_req", "0.29.0", NO_COUNT),
    _names("reads: how many readers", "0.29.0", BY_WORLD_SIZE),
    # ------------------------------------------------ before 0.30
    _hook("connector.get_transfer_results", "0.30.0", BY_RESULTS, FAILED),
    _hook("facade.get_transfer_results", "0.30.0", BY_RESULTS, FAILED),
    _hook("worker.get_transfer_results", "0.30.0", BY_RESULTS, FAILED),
    _names("results by request", "0.30.0", BY_RESULTS, FAILED),
    _order("workers: results by request, then report", "0.30.0", BY_RESULTS, FAILED),
    _names("worker: _recv_failures", "0.30.0", BY_RESULTS, FAILED),
    _names("output: failed receives", "0.30.0", FROM_ZERO, FAILED),
    _order("core: failed receives are named", "0.30.0", FROM_ZERO, FAILED),
    _names("metadata: a receive that is waited for", "0.30.0", "no receive only notifies its source", FAILED),
    _hook("connector.bind_kv_cache_manager", "0.30.0", POOL, FAILED),
    _order("core: the cache manager is bound", "0.30.0", POOL, FAILED),
    _hook("connector.has_pending_block_frees", "0.30.0", MAY_PREEMPT, FAILED),
    _order("core: asks before it preempts", "0.30.0", MAY_PREEMPT, FAILED),
    _names("scheduler: transfer_tp_size", "0.30.0", "the tensor-parallel size (older_scheduler)", FAILED),
    _hook("worker: peers still read from", "0.30.0", KEEPS_PEERS, FAILED),
    # ------------------------------------------------ before 0.31
    _hook(
        "scheduler._prefill_backoff",
        "0.31.0",
        "only models with full attention reuse KV; others are recomputed as unsupported (base_classes.readable)",
        SPARES,
    ),
    Difference(
        "worker._handle_failed_transfer",
        "0.31.0",
        ["self", "req_id", "handle", "failed_req_ids"],
        "an expired lease counts as a failed transfer in vLLM's own statistics (older_worker.OrderedReaper)",
        REAPS,
        start="0.30.0",
    ),
    # ------------------------------------------------ before 0.32
    _hook("worker: replaced peers", "0.32.0", "of another name in 0.31 (older_worker.ReplacedPeers), absent before"),
    _order("leases: expire in any order", "0.31.0", "sorted before each look (older_worker.sort_deadlines)", REAPS),
    Difference(
        "worker._handle_failed_transfer",
        "0.30.0",
        ["self", "req_id", "handle"],
        "not called: it would report a request whose other READs still write (older_worker.OlderWorkerSeams)",
        FAILED,
    ),
)
