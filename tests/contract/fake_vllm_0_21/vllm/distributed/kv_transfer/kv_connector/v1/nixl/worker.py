import queue
import threading
import time
from collections import defaultdict

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlHandshakePayload
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.tp_mapping import ReadSpec


def nixl_agent_config(**options):
    return options


NIXL = []
"""Agents that the next workers get, instead of a new one each."""


class NixlConnectorWorker:
    def __init__(self, vllm_config, engine_id, kv_cache_config):
        self.nixl_backends = ["UCX"]
        self.agent_config = nixl_agent_config(num_threads=4)
        self.nixl_wrapper = NIXL.pop()
        self._remote_agents: dict = {}
        self.engine_id = engine_id
        self.kv_cache_config = kv_cache_config
        self.world_size = 1
        self._is_hma_required = False
        self._recving_metadata: dict = {}
        self._recving_transfers = defaultdict(list)
        self._reqs_to_send: dict = {}
        self._reqs_to_process: set = set()
        self._invalid_block_ids: set = set()
        self._failed_recv_reqs: set = set()
        self.xfer_handshake_metadata = None
        self._ready_requests = queue.Queue()
        self._handshake_lock = threading.RLock()
        self.consumer_notification_counts_by_req = defaultdict(int)
        self.xfer_stats = NixlKVConnectorStats()
        self.tp_mappings: dict = {}
        self.handshakes: list = []

    def register_kv_caches(self, kv_caches):
        self.xfer_handshake_metadata = NixlHandshakePayload("hash", b"agent")

    def start_load_kv(self, metadata):
        for request_id, meta in metadata.reqs_to_recv.items():
            self._recving_metadata[request_id] = meta
            if meta.remote.engine_id not in self._remote_agents:
                self.handshakes.append((request_id, meta))
                continue
            self._read_blocks_for_req(request_id, meta)
        while not self._ready_requests.empty():
            self._read_blocks_for_req(*self._ready_requests.get_nowait())
        self._reqs_to_process.update(metadata.reqs_in_batch)
        for request_id in metadata.reqs_not_processed:
            self._reqs_to_process.discard(request_id)
            assert request_id not in self._reqs_to_send
        for request_id, deadline in metadata.reqs_to_send.items():
            if request_id in self._reqs_to_process:
                self._reqs_to_send[request_id] = deadline

    def handshake_failed(self, request_id):
        """As vLLM's handshake thread does it."""
        meta = self._recving_metadata.get(request_id)
        if meta is not None:
            self._invalid_block_ids.update(meta.local_block_ids[0])
        self._failed_recv_reqs.add(request_id)

    def _read_blocks_for_req(self, req_id, meta):
        plan = self.tp_mappings[meta.remote.engine_id]
        for rank in plan.all_source_ranks:
            self._read_blocks(
                read_spec=ReadSpec(rank, meta.local_physical_block_ids, meta.remote.block_ids),
                request_id=req_id,
                dst_engine_id=meta.remote.engine_id,
                remote_request_id=meta.remote.request_id,
                local_xfer_side_handle=10,
                remote_xfer_side_handle=20,
            )

    def _read_blocks(
        self,
        read_spec,
        dst_engine_id,
        request_id,
        remote_request_id,
        local_xfer_side_handle,
        remote_xfer_side_handle,
    ):
        remote_blocks = read_spec.remote_block_ids[0]
        num_local = len(read_spec.local_block_ids[0])
        if num_local < len(remote_blocks):
            remote_blocks = remote_blocks[-num_local:]
        handle = None
        try:
            handle = self.nixl_wrapper.make_prepped_xfer(
                "READ",
                local_xfer_side_handle,
                read_spec.local_block_ids[0],
                remote_xfer_side_handle,
                remote_blocks,
                notif_msg=f"{remote_request_id}:{self.world_size}".encode(),
            )
            self.nixl_wrapper.transfer(handle)
            self._recving_transfers[request_id].append(handle)
        except Exception:  # noqa: BLE001 - as vLLM does
            self._invalid_block_ids.update(self._recving_metadata[request_id].local_block_ids[0])
            self.xfer_stats.record_failed_transfer()
            if handle is not None:
                self.nixl_wrapper.release_xfer_handle(handle)
            self._failed_recv_reqs.add(request_id)

    def get_finished(self):
        done_sending = self._get_new_notifs()
        done_recving = self._pop_done_transfers(self._recving_transfers)
        done_recving.update(self._failed_recv_reqs)
        self._failed_recv_reqs.clear()
        for request_id in done_recving:
            meta = self._recving_metadata.pop(request_id, None)
            assert meta is not None, f"{request_id} not found in recving_metadata list"
            self.tp_mappings[meta.remote.engine_id]  # a peer that was never reached is not known
        now = time.perf_counter()
        while self._reqs_to_send:
            req_id, expires = next(iter(self._reqs_to_send.items()))
            if now < expires:
                break
            self.consumer_notification_counts_by_req.pop(req_id, 0)
            self.xfer_stats.record_kv_expired_req()
            self._reqs_to_process.remove(req_id)
            del self._reqs_to_send[req_id]
            done_sending.add(req_id)
        return done_sending, done_recving

    def _get_new_notifs(self):
        notified = set()
        for notifs in self.nixl_wrapper.get_new_notifs().values():
            for notif in notifs:
                req_id, tp_size = notif.decode("utf-8").rsplit(":", 1)
                if req_id not in self._reqs_to_send and req_id not in self._reqs_to_process:
                    continue
                self.consumer_notification_counts_by_req[req_id] += 1
                if self.consumer_notification_counts_by_req[req_id] == int(tp_size):
                    notified.add(req_id)
                    del self.consumer_notification_counts_by_req[req_id]
                    self._reqs_to_process.remove(req_id)
                    self._reqs_to_send.pop(req_id, None)
        return notified

    def _pop_done_transfers(self, transfers):
        done = set()
        for req_id, handles in list(transfers.items()):
            in_progress = []
            for handle in handles:
                try:
                    state = self.nixl_wrapper.check_xfer_state(handle)
                    if state == "DONE":
                        self.xfer_stats.record_transfer(self.nixl_wrapper.get_xfer_telemetry(handle))
                        self.nixl_wrapper.release_xfer_handle(handle)
                    elif state == "PROC":
                        in_progress.append(handle)
                    else:
                        self._handle_failed_transfer(req_id, handle)
                except Exception:  # noqa: BLE001 - as vLLM does
                    self._handle_failed_transfer(req_id, handle)
            if in_progress:
                transfers[req_id] = in_progress
            else:
                done.add(req_id)
                del transfers[req_id]
        return done

    def _handle_failed_transfer(self, req_id, handle):
        meta = self._recving_metadata.get(req_id)
        if meta is not None:
            self._invalid_block_ids.update(meta.local_block_ids[0])
        self.nixl_wrapper.release_xfer_handle(handle)
        self.xfer_stats.record_failed_transfer()

    def get_block_ids_with_load_errors(self):
        result, self._invalid_block_ids = self._invalid_block_ids, set()
        return result

    def shutdown(self):
        self._recving_transfers.clear()
