"""Façade seams of vLLM 0.32 on releases before 0.30: mixins between vLLM's connector class and ours."""

from typing import Any

from connector.engine.older_scheduler import PoolBinding


class OlderFacadeSeams:
    """``super()`` is vLLM's connector of 0.21.0 to 0.29.0."""

    connector_scheduler: Any
    connector_worker: Any

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """vLLM binds the block pool only, where later releases bind the KV cache manager."""
        self.bind_kv_cache_manager(PoolBinding(gpu_block_pool, self.connector_scheduler))

    def bind_kv_cache_manager(self, _kv_cache_manager: Any) -> None:
        """vLLM's own half of the later hook: nothing."""

    def get_finished(self, _finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Failed requests are among the received ones, and in the worker's report; their blocks are in the errors."""
        results = self.connector_worker.get_transfer_results()
        return results.finished_sending, results.finished_recving

    def update_connector_output(self, connector_output: Any) -> None:
        self.connector_scheduler.update_connector_output(connector_output)


class FacadeOfRanksWithoutStages:
    """Before 0.26 vLLM hands over payloads by tensor rank (before 0.23), or by stage and rank for base classes."""

    connector_scheduler: Any

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self.set_xfer_handshake_metadata_pp_aware({(0, rank): payload for rank, payload in metadata.items()})

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        self.connector_scheduler.set_xfer_handshake_metadata(metadata)


class LateArrivals:
    """0.21.0 doesn't announce requests: one arrives when it is matched for the first time, or ends before that."""

    connector_scheduler: Any
    _arrived: set[str]

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        self._arrive(request)
        answer: tuple[int | None, bool] = self.connector_scheduler.get_num_new_matched_tokens(
            request, num_computed_tokens
        )
        return answer

    def _arrive(self, request: Any) -> None:
        if request.request_id not in self._arrived:
            self._arrived.add(request.request_id)
            self.connector_scheduler.on_new_request(request)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        self._arrive(request)
        self._arrived.discard(request.request_id)
        answer: tuple[bool, dict[str, Any] | None] = self.connector_scheduler.request_finished(request, block_ids)
        return answer
