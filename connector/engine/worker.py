"""Worker half: executes pulls under a deadline with a fence, quarantines late ones, follows the scheduler's leases."""

import logging
import threading
import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

from connector.engine.fence import FenceMemory
from connector.engine.metadata import (
    FencedHandshakePayload,
    RankTransfer,
    SchedulerOrders,
    WorkerReport,
)
from connector.engine.nixl_agent import FencedNixlAgent
from connector.engine.options import EngineOptions
from connector.engine.pulls import Pull, PullPhase, ReadContext
from connector.protocol import TransferOutcome

logger = logging.getLogger("vllm.backhaul.worker")

SERVING_POLL_SECONDS = 0.0002


class BackhaulWorker(NixlPullConnectorWorker):
    """Seams of vLLM 0.32.0 used: facts of each override are named at its definition."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any, options: EngineOptions) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self._options = options
        self._fence_memory = FenceMemory()
        self.nixl_wrapper: Any
        self._agent = FencedNixlAgent(self.nixl_wrapper, self._fence_memory, self._is_kept)
        self.nixl_wrapper = self._agent
        self._orders: SchedulerOrders | None = None
        self._kept: set[str] = set()
        self._early_releases: set[str] = set()
        self._pull_started_at: dict[str, float] = {}
        self._abandoned: set[str] = set()
        self._quarantine: list[Pull] = []
        self._report = WorkerReport()
        self._last_step_at = time.perf_counter()
        if options.idle_poll_ms > 0:
            threading.Thread(target=self._progress_while_idle, name="backhaul-progress", daemon=True).start()

    # ------------------------------------------------ memory

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The fence is registered first, so that the handshake's agent metadata covers it."""
        region = [(self._fence_memory.address, self._fence_memory.num_bytes, 0, "")]
        descs = self._agent.get_reg_descs(region, "DRAM")
        self._agent.register_memory(descs, backends=self.nixl_backends)
        super().register_kv_caches(kv_caches)
        payload: Any = self.xfer_handshake_metadata
        self.xfer_handshake_metadata: Any = FencedHandshakePayload(
            payload.compatibility_hash, payload.agent_metadata_bytes, self._fence_memory.address
        )

    # ------------------------------------------------ one step

    def start_load_kv(self, metadata: Any) -> None:
        self._last_step_at = time.perf_counter()
        orders: SchedulerOrders = metadata.orders
        self._orders = orders
        self._lease_extension = orders.lease_extension_seconds
        for request_id in orders.dropped_words:
            self._fence_memory.drop_word(request_id)
        for request_id, (slot, generation) in orders.fence_words.items():
            self._fence_memory.raise_word(request_id, slot, generation)
        self._agent.fence_targets.update(orders.fence_targets)
        self._kept.update(orders.kept_requests)
        now = time.perf_counter()
        for request_id, meta in metadata.reqs_to_recv.items():
            if meta.awaiting_kvs:
                self._pull_started_at[request_id] = now
        super().start_load_kv(metadata)
        self._move_deadlines(orders)
        self._release(orders)

    def _move_deadlines(self, orders: SchedulerOrders) -> None:
        now = time.perf_counter()
        for request_id, remaining_seconds in orders.deadlines.items():
            if request_id in self._reqs_to_send:
                self._reqs_to_send[request_id] = now + remaining_seconds

    def _release(self, orders: SchedulerOrders) -> None:
        """Frees early, by the same route as a read: the reaper would count the release as an expiry."""
        for request_id in orders.releases:
            if self._reqs_to_send.pop(request_id, None) is None:
                continue
            self._reqs_to_process.discard(request_id)
            self.consumer_notification_counts_by_req.pop(request_id, None)
            self.expected_consumer_notifications_by_req.pop(request_id, None)
            self._early_releases.add(request_id)

    def get_transfer_results(self) -> KVConnectorTransferResults:
        self._poll_quarantine()
        self._enforce_deadlines()
        before = set(self._reqs_to_send)
        results = super().get_transfer_results()
        results.finished_sending.update(self._early_releases)
        self._account_sent(results.finished_sending, before)
        self._account_received(results)
        return results

    def _account_sent(self, finished: set[str], held_before: set[str]) -> None:
        # The word falls before the scheduler can learn that the blocks are free.
        read = self._agent.take_passed_reads()
        for request_id in finished:
            self._fence_memory.drop_word(request_id)
            self._kept.discard(request_id)
            if request_id in held_before and request_id not in read and request_id not in self._early_releases:
                self._report.expired.append(request_id)
        self._early_releases.clear()
        self._report.reads.extend(self._agent.take_reads())

    def _account_received(self, results: KVConnectorTransferResults) -> None:
        for request_id in results.finished_recving:
            self._pull_started_at.pop(request_id, None)
            self._agent.fence_targets.pop(request_id, None)
        for key, pull in list(self._agent.pulls.items()):
            if pull.phase is PullPhase.ENDED and pull.context.request_id not in self._recving_transfers:
                self._report.transfers.append(pull.record())
                del self._agent.pulls[key]

    def take_report(self) -> WorkerReport | None:
        if self._report.is_empty():
            return None
        report, self._report = self._report, WorkerReport()
        return report

    # ------------------------------------------------ pulls

    def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
        if req_id in self._abandoned:
            # Its handshake ended after the deadline; the blocks belong to someone else by now.
            self._abandoned.discard(req_id)
            return
        super()._read_blocks_for_req(req_id, meta)

    def _read_blocks(self, *args: Any, **kwargs: Any) -> bool:
        """vLLM calls this once per remote rank, with keywords; the context says whose READ NIXL sees next."""
        rank = kwargs["read_spec"].remote_rank
        agent_name = self._remote_agents[kwargs["dst_engine_id"]][(0, rank)]
        self._agent.context = ReadContext(kwargs["request_id"], rank, agent_name)
        try:
            return bool(super()._read_blocks(*args, **kwargs))
        finally:
            self._agent.context = None

    def _is_turn2_read_expired(self, meta: Any) -> bool:
        is_expired = bool(super()._is_turn2_read_expired(meta))
        if is_expired:
            self._report_unposted(self._request_of(meta), TransferOutcome.FENCED, "expired_before_read")
        return is_expired

    def _request_of(self, meta: Any) -> str:
        return next((req_id for req_id, known in self._recving_metadata.items() if known is meta), "")

    def _handle_failed_transfer(
        self, req_id: str, handle: Any, failed_req_ids: set[str] | None = None, record_failed_transfer: bool = True
    ) -> bool:
        """A fenced pull is an expiry, not a transport failure: vLLM would probe and mark the peer."""
        pull = self._agent.pulls.get(id(handle)) if handle is not None else None
        if pull is not None:
            if pull.outcome is TransferOutcome.FENCED:
                self.xfer_stats.record_kv_expired_req()
                record_failed_transfer = False
            elif pull.phase is not PullPhase.ENDED:
                pull.end(TransferOutcome.FAILED, "nixl_error")
        elif handle is None and req_id in self._recving_metadata and req_id not in self._reported_requests():
            self._report_unposted(req_id, TransferOutcome.FAILED, "handshake_failed")
        self._abandoned.discard(req_id)
        return bool(super()._handle_failed_transfer(req_id, handle, failed_req_ids, record_failed_transfer))

    def _reported_requests(self) -> set[str]:
        return {transfer.request_id for transfer in self._report.transfers}

    def _report_unposted(self, request_id: str, outcome: TransferOutcome, reason: str) -> None:
        started_at = self._pull_started_at.get(request_id, time.perf_counter())
        waited_ms = (time.perf_counter() - started_at) * 1e3
        self._report.transfers.append(
            RankTransfer(request_id, outcome.value, reason, 0, 0, 0.0, waited_ms, waited_ms),
        )

    # ------------------------------------------------ deadline and quarantine

    def _enforce_deadlines(self) -> None:
        """A late pull is handed back for recompute. Its READ can't be cancelled, so its handle lives on here."""
        if self._orders is None or not self._pull_started_at:
            return
        now, deadline = time.perf_counter(), self._orders.pull_deadline_seconds
        for request_id, started_at in list(self._pull_started_at.items()):
            if now - started_at <= deadline or request_id not in self._recving_metadata:
                continue
            if request_id in self._recving_transfers and not self._is_late(request_id, deadline):
                continue
            del self._pull_started_at[request_id]
            if request_id in self._recving_transfers:
                self._quarantine_handles(request_id)
            else:
                self._abandoned.add(request_id)
                self._report_unposted(request_id, TransferOutcome.TIMEOUT, "handshake_deadline")
            self._recv_failures.add(request_id)
            logger.warning("Pull for %s passed its deadline of %.1f s; recomputing.", request_id, deadline)

    def _is_late(self, request_id: str, deadline: float) -> bool:
        """Whether a fresh look still finds a READ under way: vLLM looks once a step, which may outlast the deadline.

        The fence is posted by that look, so that it has a deadline of its own. A failed READ is left to vLLM's look.
        """
        running = [handle for handle in self._recving_transfers[request_id] if self._state_of(handle) == "PROC"]
        pulls = [pull for handle in running if (pull := self._agent.pulls.get(id(handle)))]
        now = time.perf_counter()
        return any(pull.phase is not PullPhase.FENCE or now - pull.fence_posted_at > deadline for pull in pulls)

    def _quarantine_handles(self, request_id: str) -> None:
        late = [pull for handle in self._recving_transfers[request_id] if (pull := self._agent.pulls.get(id(handle)))]
        self._recving_transfers[request_id] = []
        for pull in late:
            del self._agent.pulls[id(pull.handle)]
            timed_out = RankTransfer(
                request_id=request_id,
                outcome=TransferOutcome.TIMEOUT.value,
                reason="deadline",
                num_bytes=0,
                num_descriptors=0,
                post_ms=pull.post_ms,
                duration_ms=pull.age_seconds() * 1e3,
                start_age_ms=pull.age_seconds() * 1e3,
            )
            self._report.transfers.append(timed_out)
            self._quarantine.append(pull)
        if late:
            self._report.quarantined.append(request_id)
            self.xfer_stats.record_failed_transfer()

    def _poll_quarantine(self) -> None:
        if not self._quarantine:
            return
        still_open = [pull for pull in self._quarantine if not self._has_ended(pull)]
        open_requests = {pull.context.request_id for pull in still_open}
        ended = {pull.context.request_id for pull in self._quarantine} - open_requests
        self._report.ended.extend(sorted(ended))
        self._quarantine = still_open

    def _has_ended(self, pull: Pull) -> bool:
        """Only then may the destination blocks, or the landing word of the fence, be used again."""
        is_fencing = pull.phase is PullPhase.FENCE
        state = self._state_of(pull.fence_handle if is_fencing else pull.handle)
        if state == "PROC":
            return False
        try:
            self._agent.release_xfer_handle(pull.handle)
            if is_fencing:
                self._agent.release_xfer_handle(pull.fence_handle)
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            # A failed release does not prove that the backend stopped writing.
            logger.warning("Quarantined pull of %s can't be released yet: %s", pull.context.request_id, error)
            return False
        if is_fencing and pull.landing is not None and state == "DONE":
            self._fence_memory.return_landing(pull.landing)
        return True

    def _state_of(self, handle: Any) -> str:
        """NIXL raises, at every call, for a READ whose source has died: that one has ended too."""
        try:
            return self._agent.check_xfer_state(handle)
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            logger.info("A READ has failed: %s", error)
            return "ERR"

    # ------------------------------------------------ idle progress

    def _is_kept(self, request_id: str) -> bool:
        orders = self._orders
        is_released_by_read = orders is not None and orders.release_on_read
        return not is_released_by_read and request_id in self._kept and request_id in self._reqs_to_send

    def _progress_while_idle(self) -> None:
        """On CPU NIXL's own progress thread is off, and an idle engine takes no steps that would answer its peers."""
        idle_seconds = self._options.idle_poll_ms / 1e3
        while True:
            is_serving = self._agent.is_serving
            time.sleep(SERVING_POLL_SECONDS if is_serving else idle_seconds)
            if not is_serving and time.perf_counter() - self._last_step_at < idle_seconds:
                continue
            try:
                self._agent.progress()
            except Exception:
                logger.exception("NIXL progress failed")
