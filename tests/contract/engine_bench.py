"""One engine without a model: vLLM's own scheduler, cache manager and pull workers, our connector, fake NIXL agents.

A block "holds" a hash of its tokens' prefix, so that a wrong block is seen.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from connector.engine.base_classes import VllmWorker, rank_key
from connector.engine.metadata import WorkerReport
from connector.engine.options import EngineOptions
from connector.engine.worker import BackhaulWorker
from connector.protocol import EngineEvent, LeaseEnded, LeaseOffer, LegDecided, PolicyValues, Role, TransferRecorded
from tests.connector.engine.builders import BLOCK_SIZE
from tests.contract.engine_config import BOOT, a_cache_config, a_vllm_config
from tests.contract.release_state import results_in_this_release
from tests.contract.wired_nixl import Wire, WiredNixl, remote_side
from tests.contract.worker_bench import state_of_vllms_worker

SALT = "salt-of-default"
MAX_STEPS = 60
WRONG = "wrong KV"


def value_after(before: int, token: int) -> int:
    """What a model would leave in the cache for this token after that prefix."""
    return hash((before, token, SALT))


def reply_of(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """What the engine must answer, whatever it reused."""
    value, reply = 0, []
    for token in prompt:
        value = value_after(value, token)
    for _ in range(num_tokens):
        reply.append(value % 90 + 1)
        value = value_after(value, reply[-1])
    return reply


class Engine:
    """One engine: scheduler process and ``num_ranks`` workers. The model is replaced by ``_execute``."""

    def __init__(self, folder: Path, wire: Wire, role: Role, *, num_ranks: int, num_blocks: int, **policy: Any) -> None:
        self.role = role
        self.num_blocks = num_blocks
        config = a_vllm_config(folder, role, num_blocks)
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=a_cache_config(num_blocks),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
            log_stats=False,
        )
        connector: Any = self.scheduler.connector
        self.core = connector._scheduler
        self.set_policy(**policy)
        self.sent: list[Any] = []
        self.core.reporter.send = self.sent.append
        self.nixls: list[WiredNixl] = []
        self.workers = [self._worker(wire, rank, num_ranks) for rank in range(num_ranks)]
        self._aggregator = KVOutputAggregator(num_ranks)
        self._hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self.answers: dict[str, list[int]] = {}
        self.finished: dict[str, dict[str, Any] | None] = {}

    def _worker(self, wire: Wire, rank: int, num_ranks: int) -> BackhaulWorker:
        nixl = WiredNixl(wire, f"{self.role.value}-{rank}", {}, BLOCK_SIZE)
        self.nixls.append(nixl)
        other = Role.DECODE if self.role is Role.PREFILL else Role.PREFILL
        peer, agent = BOOT[other], f"{other.value}-{rank}"
        state = state_of_vllms_worker(nixl, 1, BOOT[self.role], peer)
        plan = SimpleNamespace(all_source_ranks=(rank,), source_ranks_per_group=[(rank,)], local_consumers=1)
        state |= {
            "tp_rank": rank,
            "tp_mappings": {peer: plan},
            "dst_xfer_side_handles": {peer: {rank: remote_side(agent)}},
            "_remote_agents": {peer: {rank_key(rank): agent}},
        }
        options = EngineOptions(
            engine_name=f"{self.role.value}-0",
            link_path=Path("unused"),
            fleet_key_file=Path("unused"),
            is_prefill=self.role is Role.PREFILL,
            idle_poll_ms=0.0,
            idle_wait_ms=0.0,
            cpu_yield_ms=0.0,
            policy=PolicyValues(),
        )
        with patch.object(VllmWorker, "__init__", lambda worker, *_: worker.__dict__.update(state)):
            worker = BackhaulWorker(None, BOOT[self.role], None, options)
        self.core.factory.fence_address_of_rank[rank] = worker._fence_memory.address
        return worker

    def set_policy(self, **values: Any) -> None:
        self.core.live_policy.set(self.core.live_policy.revision + 1, PolicyValues(**values))

    # ------------------------------------------------ requests

    def add(
        self, request_id: str, tokens: Sequence[int], params: dict[str, Any] | None, max_tokens: int = 1
    ) -> Request:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        sampling.extra_args = {"kv_transfer_params": params} if params else None
        request = Request(request_id, list(tokens), sampling, None, cache_salt=SALT, block_hasher=self._hasher)
        self.answers[request_id] = []
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def preempt(self, request_id: str) -> None:
        """As vLLM does for want of blocks."""
        request = self.scheduler.requests[request_id]
        self.scheduler.running.remove(request)
        getattr(self.scheduler, "prev_step_scheduled_req_ids", set()).discard(request_id)
        self.scheduler._preempt_request(request, 0.0)

    def status(self, request_id: str) -> RequestStatus | None:
        request = self.scheduler.requests.get(request_id)
        return request.status if request is not None else None

    # ------------------------------------------------ the step

    def step(self) -> None:
        planned = self.scheduler.schedule()
        orders = pickle.dumps(planned.kv_connector_metadata)
        for worker in self.workers:
            worker.start_load_kv(pickle.loads(orders))  # noqa: S301 - as vLLM's executor sends it
        sampled = self._execute(planned)
        outputs: list[Any] = [self._rank_output(worker, sampled) for worker in self.workers]
        merged = self._aggregator.aggregate(outputs)
        for batch in self.scheduler.update_from_output(planned, merged).values():
            for output in batch.outputs:
                self.answers[output.request_id] += output.new_token_ids
                if output.finish_reason is not None:
                    self.finished[output.request_id] = output.kv_transfer_params

    def _execute(self, planned: Any) -> dict[str, list[int]]:
        """Computes what was scheduled, from what the blocks really hold."""
        sampled: dict[str, list[int]] = {}
        for request_id, num_tokens in planned.num_scheduled_tokens.items():
            request = self.scheduler.requests[request_id]
            (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(request_id)
            end = request.num_computed_tokens
            values = [self._compute(nixl, request, blocks, end - num_tokens, end) for nixl in self.nixls]
            sampled[request_id] = [values[0] % 90 + 1] if end == request.num_tokens else []
        return sampled

    def _compute(self, nixl: WiredNixl, request: Request, blocks: list[int], start: int, end: int) -> int:
        value = 0
        for position, token in enumerate(request.all_token_ids[:end]):
            value = value_after(value, token)
            place = blocks[position // BLOCK_SIZE], position % BLOCK_SIZE
            if position >= start:
                nixl.blocks[place] = value
            assert nixl.blocks.get(place) == value, f"{WRONG}: {request.request_id} at token {position}"
        return value

    def _rank_output(self, worker: BackhaulWorker, sampled: dict[str, list[int]]) -> ModelRunnerOutput:
        results = worker.get_transfer_results()
        output = KVConnectorOutput(
            **results_in_this_release(results),
            invalid_block_ids=worker.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=self._as_sent(worker.take_report()),
        )
        return ModelRunnerOutput(
            req_ids=list(sampled),
            req_id_to_index={request_id: index for index, request_id in enumerate(sampled)},
            sampled_token_ids=list(sampled.values()),
            kv_connector_output=output,
        )

    def _as_sent(self, report: WorkerReport | None) -> WorkerReport | None:
        sent: WorkerReport | None = pickle.loads(pickle.dumps(report))  # noqa: S301 - between processes
        return sent

    def run(self, *request_ids: str) -> None:
        """Until all of these have finished."""
        for _ in range(MAX_STEPS):
            if all(request_id in self.finished for request_id in request_ids):
                return
            self.step()
        raise AssertionError(f"{request_ids} not finished: {[self.status(name) for name in request_ids]}")

    def settle(self) -> None:
        """A few steps more, for what is reported and freed after the end."""
        for _ in range(6):
            self.step()

    # ------------------------------------------------ what can be seen

    @property
    def num_free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def events(self, kind: type) -> list[Any]:
        return [sent.event for sent in self.sent if isinstance(sent, EngineEvent) and isinstance(sent.event, kind)]

    def transfers(self) -> list[tuple[str, str]]:
        return [(str(event.outcome), event.reason) for event in self.events(TransferRecorded)]

    def decisions(self) -> list[str]:
        return [str(event.decision) for event in self.events(LegDecided)]

    def leases(self) -> list[LeaseOffer]:
        return [sent for sent in self.sent if isinstance(sent, LeaseOffer)]

    def endings(self) -> list[tuple[str, str]]:
        return [(str(event.state), event.reason) for event in self.events(LeaseEnded)]

    def close(self) -> None:
        self.core.reporter.close()
