"""vLLM's own state and results, written for 0.32, as the release that is imported has them."""

import queue
from types import SimpleNamespace
from typing import Any

from connector.engine.base_classes import RELEASE, rank_key


def as_in_this_release(state: dict[str, Any]) -> dict[str, Any]:
    """The attributes that vLLM's own ``__init__`` of the worker half and a handshake leave behind."""
    agents = {
        engine: {rank_key(rank): agent for (_, rank), agent in ranks.items()}
        for engine, ranks in state["_remote_agents"].items()
    }
    fitted = {**state, "_remote_agents": agents, "world_size": 1, "block_size": 32}
    if RELEASE.reports_failed_receives:
        return fitted
    del fitted["_recv_failures"], fitted["expected_consumer_notifications_by_req"]
    group = SimpleNamespace(kv_cache_spec=None)
    fitted["kv_cache_config"] = SimpleNamespace(kv_cache_groups=[group], transfer_groups=[group])
    fitted["_group_spec_types"] = (object,)
    kind: Any = queue.Queue if RELEASE.hears_arrivals else set
    return {**fitted, "_failed_recv_reqs": kind(), "_invalid_block_ids": kind()}


def results_in_this_release(results: Any) -> dict[str, Any]:
    """The part of ``KVConnectorOutput`` that a worker's results fill."""
    told = {"finished_sending": results.finished_sending, "finished_recving": results.finished_recving}
    return {**told, "failed_recving": results.failed_recving} if RELEASE.reports_failed_receives else told
