from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.scheduler import NixlConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.worker import NixlConnectorWorker


class NixlConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.kv_cache_config = kv_cache_config
        self.engine_id = vllm_config.kv_transfer_config.engine_id
        self.kv_transfer_config = vllm_config.kv_transfer_config
        self.connector_scheduler = self.connector_worker = None
        if role == KVConnectorRole.SCHEDULER:
            self.connector_scheduler = NixlConnectorScheduler(vllm_config, self.engine_id, kv_cache_config)
        else:
            self.connector_worker = NixlConnectorWorker(vllm_config, self.engine_id, kv_cache_config)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.connector_scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        return self.connector_scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return self.connector_scheduler.build_connector_meta(scheduler_output)

    def request_finished_all_groups(self, request, block_ids):
        return self.connector_scheduler.request_finished(request, block_ids)

    def set_xfer_handshake_metadata(self, metadata):
        self.connector_scheduler.set_xfer_handshake_metadata(metadata)

    def get_finished(self, finished_req_ids):
        return self.connector_worker.get_finished()

    def get_block_ids_with_load_errors(self):
        return self.connector_worker.get_block_ids_with_load_errors()

    def start_load_kv(self, forward_context, **kwargs):
        self.connector_worker.start_load_kv(self._connector_metadata)

    def shutdown(self):
        for half in (self.connector_worker, self.connector_scheduler):
            if half is not None:
                half.shutdown()
