import time

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.v1.request import RequestStatus

ABORT_REQUEST_TIMEOUT = 480
ENDPOINT = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")


class NixlConnectorScheduler:
    def __init__(self, vllm_config, engine_id, kv_cache_config):
        self.vllm_config = vllm_config
        self.block_size = vllm_config.cache_config.block_size
        self.engine_id = engine_id
        self.kv_cache_config = kv_cache_config
        self.side_channel_host = "127.0.0.1"
        self.side_channel_port = 5600
        self.use_host_buffer = False
        self.served = None
        self._reqs_need_recv: dict = {}
        self._reqs_need_send: dict = {}
        self._reqs_in_batch: set = set()
        self._reqs_not_processed: set = set()
        self.is_bidirectional_kv_xfer_enabled = True

    def shutdown(self):
        self.served = None

    def set_xfer_handshake_metadata(self, metadata):
        self.served = dict(metadata)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        params = request.kv_transfer_params
        if params is not None and params.get("do_remote_prefill"):
            return len(request.prompt_token_ids) - num_computed_tokens, True
        return 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        params = request.kv_transfer_params
        if not params:
            return
        self._reqs_in_batch.add(request.request_id)
        if params.get("do_remote_prefill") or (
            params.get("do_remote_decode") and not params.get("_remote_blocks_processed")
        ):
            if params.get("remote_block_ids"):
                if all(p in params for p in ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")):
                    local = blocks.get_unhashed_block_ids_all_groups() if num_external_tokens > 0 else ()
                    self._reqs_need_recv[request.request_id] = (request, local)
            else:
                assert num_external_tokens == 0
            params["do_remote_prefill"] = False
            params["_remote_blocks_processed"] = True

    def build_connector_meta(self, scheduler_output):
        meta = NixlConnectorMetadata()
        for request_id, (request, block_ids) in self._reqs_need_recv.items():
            meta.add_new_req_to_recv(
                request_id=request_id, local_block_ids=block_ids, kv_transfer_params=request.kv_transfer_params
            )
        meta.reqs_to_send, meta.reqs_in_batch = self._reqs_need_send, self._reqs_in_batch
        meta.reqs_not_processed = self._reqs_not_processed
        self._reqs_need_recv.clear()
        self._reqs_in_batch, self._reqs_not_processed, self._reqs_need_send = set(), set(), {}
        return meta

    def request_finished(self, request, block_ids):
        params = request.kv_transfer_params
        if not params:
            return False, None
        if params.get("do_remote_prefill"):
            self._reqs_need_recv[request.request_id] = (request, [])
            params["do_remote_prefill"] = False
            return False, None
        if request.status not in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED):
            self._reqs_not_processed.add(request.request_id)
            return False, None
        is_p_node = bool(params.get("do_remote_decode"))
        self._reqs_need_send[request.request_id] = time.perf_counter() + ABORT_REQUEST_TIMEOUT
        return True, dict(  # noqa: C408 - as vLLM makes it
            do_remote_prefill=is_p_node,
            do_remote_decode=not is_p_node,
            remote_block_ids=block_ids,
            remote_engine_id=self.engine_id,
            remote_request_id=request.request_id,
            remote_host=self.side_channel_host,
            remote_port=self.side_channel_port,
            tp_size=self.vllm_config.parallel_config.tensor_parallel_size,
            remote_num_tokens=request.num_computed_tokens,
        )
