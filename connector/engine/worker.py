"""Worker half: executes pulls under a deadline with a fence, quarantines late ones, follows the scheduler's leases."""

import logging
import time
from typing import Any

from connector.engine import guards
from connector.engine.base_classes import WorkerBase, rank_key
from connector.engine.fence import FenceMemory
from connector.engine.idle_progress import IdleProgress
from connector.engine.metadata import FencedHandshakePayload, SchedulerOrders, WorkerReport
from connector.engine.nixl_agent import FencedNixlAgent
from connector.engine.options import EngineOptions
from connector.engine.pulls import PullReason, ReadContext
from connector.engine.worker_leases import WorkerLeases
from connector.engine.worker_pulls import WorkerPulls
from connector.protocol import TransferOutcome

logger = logging.getLogger("vllm.backhaul.worker")


class BackhaulWorker(WorkerBase):
    """Seams of vLLM 0.32.0 used: facts of each override are named at its definition.

    Ours around vLLM's own are contained one by one: an exception in one must neither reach vLLM nor skip the next.
    """

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any, options: EngineOptions) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self._fence_memory = FenceMemory()
        self._leases = WorkerLeases(self, self._fence_memory)
        self.nixl_wrapper: Any
        self._agent = FencedNixlAgent(self.nixl_wrapper, self._fence_memory, self._leases.fate_of)
        self.nixl_wrapper = self._agent
        self._report = WorkerReport()
        self._pulls = WorkerPulls(self, self._agent, is_prefill=options.is_prefill)
        self._num_contained_reported = 0
        self._progress = IdleProgress(self._agent, options.idle_poll_ms)
        self._progress.start()

    # ------------------------------------------------ memory

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The fence is registered first, so that the handshake's agent metadata covers it."""
        region = [(self._fence_memory.address, self._fence_memory.num_bytes, 0, "")]
        descs = self._agent.get_reg_descs(region, "DRAM")
        self._agent.register_memory(descs, backends=self.nixl_backends)
        self._registered_descs.append(descs)
        super().register_kv_caches(kv_caches)
        payload: Any = self.xfer_handshake_metadata
        self.xfer_handshake_metadata: Any = FencedHandshakePayload(
            payload.compatibility_hash, payload.agent_metadata_bytes, self._fence_memory.address
        )

    # ------------------------------------------------ one step

    def start_load_kv(self, metadata: Any) -> None:
        self._progress.last_step_at = time.perf_counter()
        orders: SchedulerOrders | None = metadata.orders
        if orders is None:
            self._pulls.start(metadata.reqs_to_recv)
            super().start_load_kv(metadata)
            return
        self._lease_extension = orders.lease_extension_seconds
        self._leases.obey(orders)
        self._pulls.obey(orders)
        self._pulls.start(metadata.reqs_to_recv, orders.pull_deadlines)
        super().start_load_kv(metadata)
        self._leases.follow(orders)

    def get_transfer_results(self) -> Any:
        is_pulling = not self._pulls.is_idle
        if is_pulling:
            self._pulls.look_at_late_reads(self._report)
            self._pulls.enforce_deadlines(self._report)
        results = super().get_transfer_results()
        early_releases = self._leases.take_early_releases()
        results.finished_sending.update(early_releases)
        if results.finished_sending:
            self._leases.drop_words(results.finished_sending)
        if results.finished_sending or self._agent.notices.has_reads:
            self._account_sent(results.finished_sending, early_releases)
        if is_pulling or results.finished_recving:
            self._pulls.account(results.finished_recving, self._report)
        self._report.failed.extend(sorted(results.failed_recving))
        return results

    @guards.contained(lambda *_: set())
    def get_block_ids_with_load_errors(self) -> set[int]:
        """None for several cache groups, whose failed pulls are told by request only.

        Block ids name a block within its group, so vLLM's core dies of a report of them. Its worker makes one all the
        same when every group has full attention.
        """
        errors = set(super().get_block_ids_with_load_errors())
        return errors if len(self.kv_cache_config.kv_cache_groups) == 1 else set()

    @guards.contained(guards.nothing)
    def _account_sent(self, finished: set[str], early_releases: set[str]) -> None:
        self._leases.forget(finished)
        read = self._agent.notices.take_passed_reads()
        # What was neither read nor released has expired; looking for it in vLLM's table would cost each step a copy.
        self._report.expired.extend(sorted(finished - early_releases - read))
        self._report.reads.extend(self._agent.notices.take_reads())

    @guards.contained(guards.nothing)
    def take_report(self) -> WorkerReport | None:
        if (total := guards.total()) != self._num_contained_reported:
            self._num_contained_reported = total
            self._report.contained = guards.of_this_process()
        if self._report.is_empty():
            return None
        report, self._report = self._report, WorkerReport()
        return report

    # ------------------------------------------------ pulls

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        """An exception fails this pull only: vLLM has none here that ought to end the worker."""
        try:
            if not self._pulls.is_wanted(req_id, meta):
                self._pulls.let_source_go(meta)
                return
            with self._pulls.blaming(TransferOutcome.FAILED, PullReason.PEER_INVALID):
                super()._read_blocks_for_req(req_id, meta)
        except Exception:
            guards.count("_read_blocks_for_req")
            logger.exception("The pull of %s can't be posted", req_id)
            self._pulls.fail_unpostable(req_id)

    def _read_blocks(self, *args: Any, **kwargs: Any) -> bool:
        """vLLM calls this once per remote rank, with keywords; the context says whose READ NIXL sees next."""
        engine_id, rank = kwargs["dst_engine_id"], kwargs["read_spec"].remote_rank
        agent_name = self._remote_agents[engine_id][rank_key(rank)]
        self._agent.context = ReadContext(kwargs["request_id"], engine_id, rank, agent_name)
        try:
            with self._pulls.blaming(TransferOutcome.FAILED, PullReason.PREPARE_FAILED):
                return bool(super()._read_blocks(*args, **kwargs))
        finally:
            self._agent.context = None

    def _is_turn2_read_expired(self, meta: Any) -> bool:
        is_expired = bool(super()._is_turn2_read_expired(meta))
        if is_expired:
            self._pulls.blame = (TransferOutcome.FENCED, PullReason.EXPIRED_BEFORE_READ)
        return is_expired

    def _handle_failed_transfer(
        self, req_id: str, handle: Any, failed_req_ids: set[str] | None = None, record_failed_transfer: bool = True
    ) -> bool:
        """A fenced pull is an expiry, not a transport failure: vLLM would probe and mark the peer."""
        is_transport_failure = self._pulls.note_failure(req_id, handle, self._report)
        is_recorded = record_failed_transfer and is_transport_failure
        return bool(super()._handle_failed_transfer(req_id, handle, failed_req_ids, is_recorded))

    # ------------------------------------------------ peers

    def _engines_with_inflight_transfers(self) -> set[str]:
        """vLLM drops stale and invalid peers but these; READs that it was told are over may go on."""
        return set(super()._engines_with_inflight_transfers()) | self._pulls.engines_still_read()

    def _cleanup_remote_engines(self) -> None:
        """vLLM drops replaced peers but those of the pulls that it finds here."""
        if self._pulls.is_idle:
            super()._cleanup_remote_engines()
            return
        lent = self._pulls.lent_metas()
        self._recving_metadata.update(lent)
        try:
            super()._cleanup_remote_engines()
        finally:
            for key in lent:
                self._recving_metadata.pop(key, None)
