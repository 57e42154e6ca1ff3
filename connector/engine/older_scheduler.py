"""Scheduler seams of vLLM 0.32 on releases before 0.30: a mixin between vLLM's scheduler half and ours.

Those releases tell a failed receive by its blocks only, and recompute into the very blocks that a late READ may still
write to when a part of the prompt was cached here. And a receive that only notifies its source, if the source can't be
reached, ends as a received request that waits for nothing, which kills the engine. So here a failed receive recomputes
from zero, in other blocks, and no receive only notifies: our worker tells a source that is connected by itself.
"""

import time
from typing import Any

from connector.engine.cache_shape import CacheGroup, CacheShape, GroupKind
from connector.engine.older_worker import DeclinedSource


def one_plain_group(shape: CacheShape) -> CacheShape:
    """The shape, or one of which nothing may be read: a failed receive is told by the blocks of one group only."""
    if shape.is_plain and len(shape.groups) == 1:
        return shape
    return CacheShape(tuple(CacheGroup(GroupKind.UNKNOWN, group.block_size) for group in shape.groups))


class PoolBinding:
    """vLLM's KV cache manager, as far as we use it, where the connector is given its block pool only."""

    def __init__(self, block_pool: Any, scheduler: "OlderSchedulerSeams") -> None:
        self.block_pool = block_pool
        self._scheduler = scheduler

    def reset_prefix_cache(self) -> bool:
        """As vLLM's cache manager does, without its statistics."""
        return bool(self.block_pool.reset_prefix_cache())

    def get_blocks(self, request_id: str) -> Any:
        """Of a request whose receive is under way, or ended in this step. Raises ``KeyError`` for any other."""
        return self._scheduler.blocks_of(request_id)


class OlderSchedulerSeams:
    """``super()`` is vLLM's scheduler half of 0.21.0 to 0.29.0."""

    vllm_config: Any
    _reqs_need_send: dict[str, float]

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)  # type: ignore[call-arg]  # vLLM's class
        self._receiving: dict[str, tuple[Any, Any]] = {}
        self._just_received: dict[str, tuple[Any, Any]] = {}
        self._failed_receives: set[str] = set()
        self._declined: list[DeclinedSource] = []
        self.transfer_tp_size: int = vllm_config.parallel_config.tensor_parallel_size

    def blocks_of(self, request_id: str) -> Any:
        return (self._receiving.get(request_id) or self._just_received[request_id])[1]

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            self._receiving[request.request_id] = (request, blocks)
        elif request.kv_transfer_params:
            self._decline(request.kv_transfer_params)
        super().update_state_after_alloc(request, blocks, num_external_tokens)  # type: ignore[misc]  # vLLM's class

    def _decline(self, params: dict[str, Any]) -> None:
        """vLLM would make a receive of it that only notifies; our worker tells the source itself."""
        if params.get("remote_block_ids") and params.get("remote_request_id"):
            self._declined.append(DeclinedSource(params["remote_engine_id"], params["remote_request_id"]))
        params["remote_block_ids"] = []

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Every receive is one that a request waits for."""
        meta = super().build_connector_meta(scheduler_output)  # type: ignore[misc]  # vLLM's class
        for receive in meta.reqs_to_recv.values():
            receive.awaiting_kvs = True
        meta.declined_sources, self._declined = self._declined, []
        return meta

    def update_connector_output(self, connector_output: Any) -> None:
        """Names the failed receives that ended on every rank, and has them recomputed from zero."""
        self._in_vllm("update_connector_output", connector_output)
        report = connector_output.kv_connector_worker_meta
        self._failed_receives.update(report.failed if report is not None else ())
        ended = set(connector_output.finished_recving or ())
        self._just_received = {key: held for key in ended if (held := self._receiving.pop(key, None)) is not None}
        connector_output.failed_recving = ended & self._failed_receives
        self._failed_receives -= ended
        for request_id in connector_output.failed_recving:
            self._recompute_from_zero(request_id)

    def _recompute_from_zero(self, request_id: str) -> None:
        """vLLM then frees the request's blocks and schedules it anew, once, without a receive."""
        request, _ = self._just_received.get(request_id, (None, None))
        if request is not None and request.status.name == "WAITING_FOR_REMOTE_KVS":
            request.num_computed_tokens = 0

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        params = request.kv_transfer_params
        if params and params.get("do_remote_prefill"):
            # Never scheduled.
            self._decline({**params, "remote_block_ids": params.get("remote_block_ids") or [[0]]})
            params["do_remote_prefill"] = False
        return super().request_finished(request, block_ids)  # type: ignore[misc]  # vLLM's class

    def _in_vllm(self, hook: str, *arguments: Any) -> Any:
        """A hook that some of these releases lack."""
        found = getattr(super(), hook, None)
        return found(*arguments) if found is not None else None


class RanksWithoutStages:
    """``super()`` is vLLM's scheduler half before 0.26: it serves one payload a tensor rank."""

    def set_xfer_handshake_metadata(self, metadata: dict[tuple[int, int], Any]) -> None:
        by_rank = {rank: payload for (stage, rank), payload in metadata.items() if stage == 0}
        super().set_xfer_handshake_metadata(by_rank)  # type: ignore[misc]  # vLLM's class


class WithoutLeaseTimes:
    """``super()`` is vLLM's scheduler half of 0.21.0: no arrivals, no heartbeats, one fixed life of held blocks."""

    _reqs_need_send: dict[str, float]

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)  # type: ignore[call-arg]  # vLLM's class
        self.decoder_kv_blocks_ttl: float = 480
        self._kv_lease_duration = 30
        self._heartbeat_by_engine: dict[str, Any] = {}

    def on_new_request(self, _request: Any) -> None:
        """No heartbeats to start."""

    def _stop_heartbeat(self, _request_id: str) -> None:
        """None were started."""

    def request_finished(self, request: Any, block_ids: Any) -> Any:
        """The TTL holds here too, except that an engine which only holds leases takes no step to end one."""
        answer = super().request_finished(request, block_ids)  # type: ignore[misc]  # vLLM's class
        params = request.kv_transfer_params
        if request.request_id in self._reqs_need_send and not params.get("do_remote_decode"):
            self._reqs_need_send[request.request_id] = time.perf_counter() + self.decoder_kv_blocks_ttl
        return answer
