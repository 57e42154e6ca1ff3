"""Our façade's two halves on the fakes of vLLM 0.21.0, with a fake NIXL agent and one peer."""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import worker as vllms_worker
from vllm.v1.request import RequestStatus

from connector.engine.connector import NixlConnector
from connector.engine.metadata import BackhaulMetadata, FenceTarget, SchedulerOrders
from connector.protocol import PolicyValues
from tests.connector.engine.builders import BLOCK_SIZE, SECRET
from tests.connector.engine.requests import a_request
from tests.contract.fake_nixl import FakeNixl

PEER = "peer-boot"
WORD = 77
NUM_BLOCKS = 50


class FullAttentionSpec:
    block_size = BLOCK_SIZE
    page_size_bytes = 64


class TransferConfig:
    kv_load_failure_policy = "recompute"
    kv_buffer_device = "cuda"
    engine_id = "own-boot"

    def __init__(self, folder: Path, *, is_prefill: bool, **extra: Any) -> None:
        key_file = folder / "fleet.key"
        key_file.write_text(f"k1 {SECRET.hex()}")
        key_file.chmod(0o600)
        self.kv_role = "kv_producer" if is_prefill else "kv_consumer"
        self._extra = {
            "bidirectional_kv_xfer": True,
            "backhaul_engine_name": "p-0" if is_prefill else "d-0",
            "backhaul_link_path": str(folder / f"{self.kv_role}.sock"),
            "backhaul_fleet_key_file": str(key_file),
            "backhaul_policy_wait_seconds": 0,
            **extra,
        }

    def get_from_extra_config(self, key: str, default: Any) -> Any:
        return self._extra.get(key, default)


def a_config(folder: Path, *, is_prefill: bool, **extra: Any) -> Any:
    model = SimpleNamespace(
        model="tiny",
        dtype="float32",
        served_model_name="tiny",
        hf_config=SimpleNamespace(model_type="tiny"),
        get_total_num_hidden_layers=lambda: 2,
        get_total_num_kv_heads=lambda: 1,
        get_head_size=lambda: 8,
    )
    parallel = SimpleNamespace(tensor_parallel_size=1, decode_context_parallel_size=1, pipeline_parallel_size=1)
    return SimpleNamespace(
        model_config=model,
        parallel_config=parallel,
        cache_config=SimpleNamespace(block_size=BLOCK_SIZE, cache_dtype="auto"),
        kv_transfer_config=TransferConfig(folder, is_prefill=is_prefill, **extra),
    )


class SlidingWindowSpec(FullAttentionSpec):
    sliding_window = 8


def a_cache_config(*specs: Any) -> Any:
    groups = [SimpleNamespace(layer_names=["a", "b"], kv_cache_spec=spec) for spec in specs or [FullAttentionSpec()]]
    return SimpleNamespace(kv_cache_groups=groups)


class FakePool:
    num_gpu_blocks = NUM_BLOCKS

    def __init__(self) -> None:
        self.touched: list[int] = []
        self.freed: list[int] = []

    def get_num_free_blocks(self) -> int:
        return NUM_BLOCKS

    def touch(self, blocks: Sequence[Any]) -> None:
        self.touched += [block.block_id for block in blocks]

    def free_blocks(self, blocks: Any) -> None:
        self.freed += [block.block_id for block in blocks]


class Blocks:
    """vLLM's ``KVCacheBlocks`` of one group, none of them hashed."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.blocks = ([SimpleNamespace(block_id=index, is_null=False) for index in ids],)

    def get_unhashed_block_ids_all_groups(self) -> tuple[list[int], ...]:
        return tuple([block.block_id for block in group] for group in self.blocks)


class SchedulerHalf:
    def __init__(self, folder: Path, *specs: Any, is_prefill: bool) -> None:
        config = a_config(folder, is_prefill=is_prefill, kv_recompute_threshold=1)
        self.facade = NixlConnector(config, KVConnectorRole.SCHEDULER, a_cache_config(*specs))
        self.half: Any = self.facade._scheduler
        self.pool = FakePool()
        self.facade.bind_gpu_block_pool(self.pool)
        self.facade.set_xfer_handshake_metadata(
            {0: SimpleNamespace(fence_address=0x9000, agent_metadata_bytes=b"\x80")}
        )
        self.sent: list[Any] = []
        self.half.reporter.send = self.sent.append

    def set_policy(self, **values: Any) -> None:
        self.half.live_policy.set(1, PolicyValues(kv_recompute_threshold=1, **values))

    def allocate(self, request: Any, blocks: Blocks) -> int:
        num_tokens, _ = self.facade.get_num_new_matched_tokens(request, 0)
        self.facade.update_state_after_alloc(request, blocks, num_tokens)
        return int(num_tokens)

    def step(self) -> Any:
        return self.facade.build_connector_meta(SimpleNamespace(total_num_scheduled_tokens=1, num_scheduled_tokens={}))

    def finish(self, request: Any, status: RequestStatus = RequestStatus.FINISHED_STOPPED) -> Any:
        request.status = status
        return self.facade.request_finished_all_groups(request, ([1, 2],))

    def close(self) -> None:
        self.facade.shutdown()


def a_running_request(prompt: Sequence[int], params: Any, **changes: Any) -> Any:
    return a_request(prompt, params, reply=[60], **{"status": RequestStatus.RUNNING, **changes})


class WorkerHalf:
    def __init__(self, folder: Path, *, num_ranks: int = 1, **extra: Any) -> None:
        self.nixl = FakeNixl()
        vllms_worker.NIXL.append(self.nixl)
        config = a_config(folder, is_prefill=True, **extra)
        self.facade = NixlConnector(config, KVConnectorRole.WORKER, a_cache_config())
        self.half: Any = self.facade._worker
        ranks = tuple(range(num_ranks))
        self.half.tp_mappings = {PEER: SimpleNamespace(all_source_ranks=ranks)}
        self.half._remote_agents = {PEER: {rank: f"agent-{rank}" for rank in ranks}}
        self.targets = FenceTarget({rank: 0x7000 + rank for rank in ranks}, WORD)

    def start(self, metadata: BackhaulMetadata | None = None, **orders: Any) -> None:
        meta = metadata or BackhaulMetadata()
        meta.declined_sources = getattr(meta, "declined_sources", [])
        meta.orders = SchedulerOrders(**{"pull_deadline_seconds": 5.0, "lease_extension_seconds": 20, **orders})
        self.facade.bind_connector_metadata(meta)
        self.facade.start_load_kv(None)

    def pull(self, request_id: str = "r", engine: str = PEER) -> None:
        meta = BackhaulMetadata()
        source = {"remote_engine_id": engine, "remote_request_id": "src", "remote_host": "127.0.0.1", "remote_port": 1}
        meta.add_new_req_to_recv(request_id, ([1, 2, 3],), {**source, "remote_block_ids": [[7, 8, 9]]})
        meta.reqs_to_recv[request_id].awaiting_kvs = True
        self.start(meta, fence_targets={request_id: self.targets})

    def hold(self, request_id: str, seconds: float, now: float) -> None:
        meta = BackhaulMetadata()
        meta.reqs_in_batch, meta.reqs_to_send = {request_id}, {request_id: now + seconds}
        self.start(meta)

    def results(self) -> tuple[set[str], set[str], set[int], Any]:
        """(sent, received, blocks with errors, report), in the order in which vLLM's worker asks."""
        sent, received = self.facade.get_finished(set())
        return sent, received, self.facade.get_block_ids_with_load_errors(), self.facade.build_connector_worker_meta()

    def fail_handshake(self, request_id: str) -> None:
        """In vLLM's own thread."""
        thread = threading.Thread(target=self.half.handshake_failed, args=(request_id,))
        thread.start()
        thread.join()
