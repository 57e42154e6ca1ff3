from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata


@dataclass
class NixlAgentMetadata:
    block_lens: list[int]
    kv_cache_layout: str


@dataclass
class NixlHandshakePayload:
    compatibility_hash: str
    agent_metadata_bytes: bytes


@dataclass
class RemoteMeta:
    block_ids: Any
    host: str
    port: int
    engine_id: str
    request_id: str


@dataclass
class ReqMeta:
    local_block_ids: Any
    local_physical_block_ids: Any
    tp_size: int
    remote: RemoteMeta | None = None


class NixlConnectorMetadata(KVConnectorMetadata):
    def __init__(self):
        self.reqs_to_recv: dict[str, ReqMeta] = {}
        self.reqs_to_save: dict[str, ReqMeta] = {}
        self.reqs_to_send: dict[str, float] = {}
        self.reqs_in_batch: set[str] = set()
        self.reqs_not_processed: set[str] = set()

    def _add_new_req(self, local_block_ids, kv_transfer_params):
        return ReqMeta(local_block_ids, local_block_ids, kv_transfer_params.get("tp_size", 1))

    def add_new_req_to_recv(self, request_id, local_block_ids, kv_transfer_params):
        wanted = self._add_new_req(local_block_ids, kv_transfer_params)
        wanted.remote = RemoteMeta(
            kv_transfer_params["remote_block_ids"],
            kv_transfer_params["remote_host"],
            kv_transfer_params["remote_port"],
            kv_transfer_params["remote_engine_id"],
            kv_transfer_params["remote_request_id"],
        )
        self.reqs_to_recv[request_id] = wanted
