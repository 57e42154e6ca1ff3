"""Our worker on vLLM's own pull worker, with a fake NIXL agent, a manual clock and one peer; no model, no memory."""

import queue
import threading
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats

from connector.engine import (
    base_classes,
    deadlines,
    idle_progress,
    nixl_agent,
    pulls,
    worker,
    worker_leases,
    worker_pulls,
)
from connector.engine.metadata import BackhaulMetadata, FenceTarget, SchedulerOrders, WorkerReport
from connector.engine.options import EngineOptions
from connector.engine.worker import BackhaulWorker
from connector.protocol import PolicyValues
from tests.contract.fake_nixl import FakeNixl
from tests.contract.release_state import as_in_this_release

PEER = "peer-boot"
GENERATION = 77
DEADLINE_SECONDS = 5.0
OPTIONS = EngineOptions(
    engine_name="p-0",
    link_path=Path("unused"),
    fleet_key_file=Path("unused"),
    is_prefill=True,
    idle_poll_ms=0.0,
    idle_wait_ms=0.0,
    cpu_yield_ms=0.0,
    policy=PolicyValues(),
)


OURS = (
    worker,
    worker_leases,
    worker_pulls,
    deadlines,
    idle_progress,
    nixl_agent,
    pulls,
    *base_classes.WORKER_MODULES,
)
"""Modules that read the clock."""


class ManualClock:
    """``perf_counter`` of ours and vLLM's worker; runs only when told to."""

    def __init__(self) -> None:
        self.now = 10_000.0

    def perf_counter(self) -> float:
        self.now += 1e-6
        return self.now


class FakeTopology:
    """One peer with as many transfer ranks as the bench says."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks

    def get_engine_info(self, _engine_id: str) -> Any:
        return SimpleNamespace(
            remote_tp_size=self._num_ranks,
            remote_dcp_size=1,
            remote_block_size=32,
            remote_physical_blocks_per_logical=1,
        )

    def tp_ratio(self, remote_tp_size: int) -> int:
        return 1 if remote_tp_size == 1 else -remote_tp_size

    def block_size_ratio(self, _remote_block_size: int) -> int:
        return 1


def state_of_vllms_worker(nixl: FakeNixl, num_ranks: int, own: str = "own-boot", peer: str = PEER) -> dict[str, Any]:
    """What vLLM 0.32's own ``__init__`` and a handshake with the peer leave behind, as far as pulls read it."""
    ranks = tuple(range(num_ranks))
    state = {
        "nixl_wrapper": nixl,
        "engine_id": own,
        "tp_rank": 0,
        "pcp_rank": 0,
        "pcp_dcp_sharded": False,
        "dcp_size": 1,
        "use_mla": False,
        "use_host_buffer": False,
        "enable_permute_local_kv": False,
        "enable_heterogeneous_attn_post_process": False,
        "num_regions": 1,
        "region_group_ids": [],
        "region_num_blocks": None,
        "_is_hma_required": False,
        "_has_mamba": False,
        "_mixed_mem_types": False,
        "_uses_region_group_mapping": False,
        "_physical_blocks_per_logical_kv_block": 1,
        "_bidirectional_kv_xfer_enabled": True,
        "_lease_extension": 20,
        "_hb_handshake_notif_only": False,
        "_engine_ttl": 0,
        "kv_cache_config": SimpleNamespace(kv_cache_groups=[None], transfer_groups=[None]),
        "transfer_topo": FakeTopology(num_ranks),
        "tp_mappings": {
            peer: SimpleNamespace(all_source_ranks=ranks, source_ranks_per_group=[ranks], local_consumers=1)
        },
        "dst_num_blocks": {peer: 100, own: 100},
        "dst_region_num_blocks": {},
        "dst_region_group_ids": {peer: []},
        "dst_uses_region_group_mapping": {peer: False},
        "dst_xfer_side_handles": {peer: dict.fromkeys(ranks, 20)},
        "src_xfer_handles_by_block_size": {32: 10},
        "src_xfer_handles_by_tp_ratio": {(-num_ranks, 32): [10] * num_ranks},
        "_compute_desc_ids": lambda **arguments: list(arguments["block_ids"][0]),
        "_remote_agents": {peer: {(0, rank): f"agent-{rank}" for rank in ranks}},
        "_engine_by_address": {("127.0.0.1", 5600): peer},
        "_engine_clock_offset": {peer: 0.0},
        "_engine_last_active": {},
        "_invalid_engine_backoff": {},
        "_invalid_remote_engines": set(),
        "_failed_remote_engines": set(),
        "_registered_descs": [],
        "_handshake_lock": threading.RLock(),
        "_handshake_futures": {},
        "_ready_requests": queue.Queue(),
        "_failed_recv_reqs": queue.Queue(),
        "_invalid_block_ids": queue.Queue(),
        "_recving_metadata": {},
        "_recving_transfers": defaultdict(list),
        "_pending_recv_notifs": {},
        "_recv_failures": set(),
        "_replicated_pcp_done_sending": set(),
        "_reqs_to_send": {},
        "_reqs_to_process": set(),
        "consumer_notification_counts_by_req": defaultdict(int),
        "expected_consumer_notifications_by_req": {},
        "xfer_stats": NixlKVConnectorStats(),
    }
    return as_in_this_release(state)


class WorkerBench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, num_ranks: int = 1) -> None:
        self.clock = ManualClock()
        for module in OURS:
            monkeypatch.setattr(module, "time", self.clock)
        self.nixl = FakeNixl()
        state = state_of_vllms_worker(self.nixl, num_ranks)
        monkeypatch.setattr(base_classes.VllmWorker, "__init__", lambda self, *_arguments: self.__dict__.update(state))
        self.worker = BackhaulWorker(None, "own-boot", None, OPTIONS)
        self.stats: NixlKVConnectorStats = self.worker.xfer_stats
        self.addresses = {rank: 0x7000 + 0x100 * rank for rank in range(num_ranks)}

    def orders(self, **changes: Any) -> SchedulerOrders:
        given = {
            "pull_deadline_seconds": DEADLINE_SECONDS,
            "lease_extension_seconds": 20,
            **changes,
        }
        return SchedulerOrders(**given)

    def step(self, metadata: BackhaulMetadata | None = None, **orders: Any) -> Any:
        """One engine step, in vLLM's order: loads are started, then results are asked for."""
        self.begin(metadata, **orders)
        return self.worker.get_transfer_results()

    def begin(self, metadata: BackhaulMetadata | None = None, **orders: Any) -> None:
        meta = metadata if metadata is not None else BackhaulMetadata()
        meta.orders = self.orders(**orders)
        self.worker.start_load_kv(meta)

    def pull(self, request_id: str = "r", *, engine: str = PEER, expires_in: float | None = None) -> Any:
        """A step in which the scheduler orders a pull of three blocks."""
        metadata = BackhaulMetadata()
        metadata.add_new_req_to_recv(
            request_id=request_id,
            local_block_ids=([1, 2, 3],),
            kv_transfer_params={
                "remote_engine_id": engine,
                "remote_request_id": "src",
                "remote_host": "127.0.0.1",
                "remote_port": 5600,
                "remote_block_ids": [[7, 8, 9]],
                "remote_num_tokens": 96,
                "remote_blocks_expiry_time": None if expires_in is None else self.clock.now + expires_in,
                "tp_size": 1,
            },
            local_num_computed_blocks=(0,),
            awaiting_kvs=True,
        )
        return self.step(metadata, fence_targets={request_id: FenceTarget(self.addresses, GENERATION)})

    def hold(self, request_id: str = "r", *, ttl: float = 60.0, kept: bool = True, slot: int = 3) -> Any:
        """Steps in which a request runs and then ends with its blocks held, as a session lease or as a handoff."""
        metadata = BackhaulMetadata()
        metadata.reqs_in_batch = {request_id}
        self.step(metadata, fence_words={request_id: (slot, GENERATION)})
        metadata = BackhaulMetadata()
        metadata.reqs_to_send = {request_id: self.clock.now + ttl}
        return self.step(metadata, kept_requests=[request_id] if kept else [])

    def receive(self, *messages: bytes) -> None:
        """A peer's notices, found at the next step."""
        self.nixl.incoming.append({"agent-0": list(messages)})

    def word(self, slot: int = 3) -> int:
        return self.worker._fence_memory.value(slot)

    def report(self) -> WorkerReport:
        return self.worker.take_report() or WorkerReport()
