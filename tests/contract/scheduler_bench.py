"""Our scheduler half on vLLM's own, with real requests and blocks, and an agent's ear instead of the link."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from connector.engine.metadata import SchedulerOrders, WorkerReport
from connector.engine.offers import KvOffer
from connector.engine.options import EngineOptions
from connector.engine.scheduler import BackhaulScheduler
from connector.protocol import EngineEvent, EngineToAgent, LeaseOffer, LegDecided, LegEnvelope, PolicyValues, Role
from tests.connector.engine.builders import BLOCK_SIZE, FLEET_KEY, SECRET, an_envelope
from tests.connector.engine.requests import leg_params

NUM_BLOCKS = 50
FENCE_ADDRESS = 0x9000
AS_DECODE: dict[str, Any] = {"do_remote_decode": False, "do_remote_prefill": True}
"""What a router writes on a decode leg, instead of a prefill leg's flags."""


class FakeTransferConfig:
    kv_buffer_device = "cpu"
    kv_role = "kv_producer"

    def get_from_extra_config(self, key: str, default: Any) -> Any:
        return {"bidirectional_kv_xfer": True}.get(key, default)


class FakeCacheManager:
    """vLLM's cache manager and block pool, as far as leases and the quarantine use them."""

    def __init__(self) -> None:
        self.block_pool = self
        self.num_gpu_blocks = NUM_BLOCKS
        self.blocks_of: dict[str, KVCacheBlocks] = {}
        self.touched: list[int] = []
        self.freed: list[int] = []

    def get_num_free_blocks(self) -> int:
        return NUM_BLOCKS

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        return self.blocks_of[request_id]

    def touch(self, blocks: Sequence[Any]) -> None:
        self.touched += [block.block_id for block in blocks]

    def free_blocks(self, blocks: Any) -> None:
        self.freed += [block.block_id for block in blocks]


def a_config() -> Any:
    """vLLM's configuration, as far as both scheduler halves read it."""
    model = SimpleNamespace(
        model="tiny",
        revision=None,
        dtype=torch.float32,
        quantization=None,
        served_model_name="tiny",
        hf_config=SimpleNamespace(rope_parameters=None),
        get_total_num_hidden_layers=lambda: 2,
        get_total_num_kv_heads=lambda: 1,
        get_head_size=lambda: 8,
    )
    parallel = SimpleNamespace(
        tensor_parallel_size=1,
        decode_context_parallel_size=1,
        pipeline_parallel_size=1,
        data_parallel_index=0,
    )
    return SimpleNamespace(
        model_config=model,
        parallel_config=parallel,
        cache_config=SimpleNamespace(block_size=BLOCK_SIZE, cache_dtype="auto", mamba_cache_mode="none"),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=True),
        kv_transfer_config=FakeTransferConfig(),
        num_prefill_lookahead_tokens=0,
    )


def a_cache_config() -> Any:
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32)
    groups = [KVCacheGroupSpec(layer_names=["a", "b"], kv_cache_spec=spec)]
    return SimpleNamespace(
        kv_cache_groups=groups,
        transfer_groups=groups,
        has_mamba_layers=False,
        select_transfer_block_ids=lambda block_ids: block_ids,
    )


class SchedulerBench:
    def __init__(self, folder: Path, *, is_prefill: bool, **policy: Any) -> None:
        key_file = folder / "fleet.key"
        key_file.write_text(f"k1 {SECRET.hex()}")
        key_file.chmod(0o600)
        self.options = EngineOptions(
            engine_name="p-0" if is_prefill else "d-0",
            link_path=folder / "link.sock",
            fleet_key_file=key_file,
            is_prefill=is_prefill,
            idle_poll_ms=0.0,
            idle_wait_ms=0.0,
            cpu_yield_ms=0.0,
            policy=PolicyValues(**{"kv_recompute_threshold": 1, **policy}),
        )
        self.scheduler = BackhaulScheduler(a_config(), "own-boot", a_cache_config(), self.options)
        self.scheduler.factory.fence_address_of_rank[0] = FENCE_ADDRESS
        self.cache = FakeCacheManager()
        self.scheduler.quarantine.bind(self.cache)
        self.scheduler.control.bind(self.cache)
        self.sent: list[EngineToAgent] = []
        reporter: Any = self.scheduler.reporter
        reporter.send = self.sent.append  # the agent's ear

    # ------------------------------------------------ a request's way through vLLM

    def arrive(
        self, tokens: Sequence[int], envelope: LegEnvelope | None, offer: KvOffer | None = None, **params: Any
    ) -> Request:
        """A new request with these params; ``None`` as envelope sends none."""
        return self.arrive_raw(tokens, leg_params(envelope, offer, **params))

    def arrive_raw(self, tokens: Sequence[int], params: dict[str, Any] | None, request_id: str = "req-1") -> Request:
        sampling = SamplingParams(max_tokens=100, extra_args={"kv_transfer_params": params} if params else None)
        request = Request(request_id, list(tokens), sampling, None, cache_salt="salt-of-default")
        self.scheduler.on_new_request(request)
        return request

    def allocate(self, request: Request, num_local_tokens: int = 0) -> int:
        """vLLM schedules the request for the first time; returns how many tokens it waits for."""
        num_external, is_async = self.scheduler.get_num_new_matched_tokens(request, num_local_tokens)
        assert is_async == (num_external > 0)
        blocks = [KVCacheBlock(40 + index) for index in range(-(-request.num_tokens // BLOCK_SIZE))]
        self.cache.blocks_of[request.request_id] = KVCacheBlocks((blocks,))
        self.scheduler.update_state_after_alloc(request, self.cache.blocks_of[request.request_id], num_external)
        return num_external

    def orders(self) -> SchedulerOrders:
        """Of one more step; empty ones when the workers know all."""
        orders: SchedulerOrders | None = self.metadata().orders
        return orders or SchedulerOrders(pull_deadline_seconds=0, lease_extension_seconds=0)

    def metadata(self) -> Any:
        output = SimpleNamespace(total_num_scheduled_tokens=1, num_scheduled_tokens={"x": 1})
        return self.scheduler.build_connector_meta(output)

    def results(self, report: WorkerReport | None = None, **finished: set[str]) -> None:
        """What the workers report after a step."""
        self.scheduler.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=report, **finished))

    def finish(
        self, request: Request, reply: Sequence[int] = (60,), status: RequestStatus = RequestStatus.FINISHED_STOPPED
    ) -> tuple[bool, dict[str, Any] | None]:
        """The request ends; its last sampled token has no KV."""
        request.append_output_token_ids(list(reply))
        request.num_computed_tokens = request.num_tokens - 1
        request.status = status
        num_blocks = -(-request.num_computed_tokens // BLOCK_SIZE)
        return self.scheduler.request_finished(request, (list(range(40, 40 + num_blocks)),))

    # ------------------------------------------------ what the agent heard

    def events(self, kind: type) -> list[Any]:
        return [sent.event for sent in self.sent if isinstance(sent, EngineEvent) and isinstance(sent.event, kind)]

    def decided(self) -> LegDecided:
        (leg,) = self.events(LegDecided)
        assert isinstance(leg, LegDecided)
        return leg

    def messages(self, kind: type) -> list[Any]:
        return [sent for sent in self.sent if isinstance(sent, kind)]

    # ------------------------------------------------ what nothing may be left of

    def leftovers(self) -> list[str]:
        scheduler = self.scheduler
        places: dict[str, Any] = {
            "legs": scheduler.legs,
            "slots": scheduler.fence._slots._held,
            "taken": range(scheduler.fence._slots.num_taken),
            "fence_targets": scheduler.fence._targets,
            "transfers": scheduler.transfers._legs,
            "ranks": scheduler.transfers._ranks,
            "leases": list(scheduler.control.table),
            "quarantine": scheduler.quarantine._held,
            "heartbeats": scheduler._heartbeat_by_engine,
        }
        return [name for name, place in places.items() if len(place)]


def offered_by(bench: SchedulerBench, tokens: Sequence[int]) -> KvOffer:
    """The offer that this engine makes once it has computed exactly these tokens."""
    role = Role.PREFILL if bench.options.is_prefill else Role.DECODE
    prompt, reply = list(tokens)[:-1], [tokens[-1], 63]
    if bench.options.is_prefill:
        prompt, reply = list(tokens), [63]
    given = {} if bench.options.is_prefill else AS_DECODE
    request = bench.arrive(prompt, an_envelope(leg=role, session_id=f"of-{bench.options.engine_name}"), **given)
    bench.allocate(request)
    is_kept, answer = bench.finish(request, reply)
    assert is_kept
    token = answer["backhaul"]["offer"] if answer else bench.messages(LeaseOffer)[-1].offer
    return FLEET_KEY.verify("offer", token, KvOffer)
