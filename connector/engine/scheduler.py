"""Scheduler half: verifies offers before vLLM sees them, grants leases, applies policy, reports to the agent."""

import logging
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler
from vllm.v1.request import RequestStatus

from connector.engine import guards
from connector.engine.cpu import IdleWait
from connector.engine.digests import DigestChain
from connector.engine.fence_orders import FenceOrders
from connector.engine.fingerprint import is_full_attention_only, model_fingerprint
from connector.engine.grants import GrantFacts, LeaseFactory
from connector.engine.lease_control import LeaseControl
from connector.engine.legs import Leg
from connector.engine.matcher import LegMatcher, clear_remote_fields
from connector.engine.matching import Match
from connector.engine.metadata import BackhaulMetadata, SchedulerOrders, WorkerReport
from connector.engine.offers import PURPOSE as OFFER_PURPOSE
from connector.engine.options import EngineOptions
from connector.engine.policy import LivePolicy, for_request
from connector.engine.quarantine import BlockQuarantine
from connector.engine.reporting import EngineReporter
from connector.engine.transfers import TransferBook
from connector.protocol import Decision, LegReply, Role
from connector.signing import FleetKey

logger = logging.getLogger("vllm.backhaul.scheduler")

FINISHED_CLEANLY = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)


class BackhaulScheduler(NixlPullConnectorScheduler):
    """Seams of vLLM 0.32.0; each override says what vLLM does there."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any, options: EngineOptions) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self.role = Role.PREFILL if options.is_prefill else Role.DECODE
        self.live_policy = LivePolicy(options.policy)
        self.fleet_key = FleetKey.load(options.fleet_key_file)
        fingerprint = model_fingerprint(vllm_config)
        self._matcher = LegMatcher(
            fleet_key=self.fleet_key,
            role=self.role,
            fingerprint=fingerprint,
            block_size=self.block_size,
            allow_partial=is_full_attention_only(kv_cache_config),
        )
        self._legs: dict[str, Leg] = {}
        self._fence = FenceOrders()
        bytes_per_block = max(
            group.kv_cache_spec.page_size_bytes * len(group.layer_names) for group in kv_cache_config.kv_cache_groups
        )
        self.factory = LeaseFactory(self, options.engine_name, self.role, fingerprint, bytes_per_block)
        self.control = LeaseControl(lambda offer: self.fleet_key.sign(OFFER_PURPOSE, offer), self.live_policy)
        self.quarantine = BlockQuarantine()
        self.transfers = TransferBook(options.engine_name, self.role)
        self.reporter = EngineReporter(self, options)
        self.control.reporter = self.reporter
        self._idle_wait = IdleWait(options.idle_wait_ms)

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        self.quarantine.bind(kv_cache_manager)
        self.control.bind(kv_cache_manager.block_pool)
        self.reporter.bind(kv_cache_manager.block_pool)

    def set_xfer_handshake_metadata(self, metadata: dict[tuple[int, int], Any]) -> None:
        """vLLM serves this to peers; it also brings every rank's fence address here, before the first request."""
        for (pp_rank, tp_rank), payload in metadata.items():
            if pp_rank == 0:
                self.factory.fence_address_of_rank[tp_rank] = payload.fence_address
        super().set_xfer_handshake_metadata(metadata)

    def shutdown(self) -> None:
        self.reporter.close()
        super().shutdown()

    # ------------------------------------------------ arrival

    def on_new_request(self, request: Any) -> None:
        """vLLM starts heartbeats here from remote fields, so they must be ours, or absent, before it looks."""
        self.reporter.count_arrival(request.request_id)
        self._open_leg(request)
        super().on_new_request(request)

    def _drop_leg(self, request: Any) -> None:
        if request.kv_transfer_params:
            clear_remote_fields(request.kv_transfer_params)
        self._legs.pop(request.request_id, None)

    @guards.contained(_drop_leg)
    def _open_leg(self, request: Any) -> None:
        self.control.pump()
        if not request.kv_transfer_params:
            return
        leg = self._matcher.open(request, request.kv_transfer_params, self.live_policy.values)
        if leg is not None:
            self._legs[request.request_id] = leg

    # ------------------------------------------------ matching

    @guards.contained(lambda *_: (0, False))
    def _recompute(self, request: Any, _num_computed_tokens: int) -> tuple[int, bool]:
        """After an exception: no remote tokens. A decode leg's source is still notified, by its kept endpoint."""
        leg = self._legs.get(request.request_id)
        if leg is not None:
            leg.match, leg.decision = Match(decision=Decision.REJECTED), Decision.REJECTED
            self._matcher.write_back(leg, leg.match, request.kv_transfer_params)
        return 0, False

    @guards.contained(_recompute)
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """vLLM asks each step while a request waits, and after a failed pull or preemption; one pull at most."""
        self.control.pump()
        self.control.make_room(request.num_prompt_tokens + 1, self.block_size)
        leg = self._legs.get(request.request_id)
        params = request.kv_transfer_params
        if leg is None or not params or params.get("_remote_blocks_processed"):
            return 0, False
        match = leg.match = self._matcher.match(request, leg, num_computed_tokens)
        leg.decision, leg.num_local_tokens = match.decision, num_computed_tokens
        self._matcher.write_back(leg, match, params)
        return match.num_pull_tokens, match.num_pull_tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._before_alloc(request, num_external_tokens)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    @guards.contained(guards.nothing)
    def _before_alloc(self, request: Any, num_external_tokens: int) -> None:
        leg = self._legs.get(request.request_id)
        params = request.kv_transfer_params
        if leg is None or not params or params.get("_remote_blocks_processed"):
            return
        self._fence.raise_word(request.request_id)
        if num_external_tokens > 0 and leg.offer is not None:
            self._fence.compare(request.request_id, leg.offer)
            self.transfers.start(request.request_id, leg)
        else:
            self._report_leg(leg)

    def _report_leg(self, leg: Leg) -> None:
        if not leg.is_reported:
            leg.is_reported = True
            self.reporter.event(leg.decided())

    # ------------------------------------------------ the step

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._before_step(scheduler_output)
        meta = super().build_connector_meta(scheduler_output)
        ours = BackhaulMetadata()
        ours.__dict__.update(meta.__dict__)
        ours.orders = self._take_orders()
        return ours

    @guards.contained(guards.nothing)
    def _before_step(self, scheduler_output: Any) -> None:
        self.control.pump()
        self.control.keep_low_water()
        self.reporter.count_step(scheduler_output)
        self._wait_if_idle(scheduler_output)

    def _wait_if_idle(self, scheduler_output: Any) -> None:
        has_work = scheduler_output.total_num_scheduled_tokens or self._reqs_need_recv or self._reqs_need_send
        holds_blocks = len(self.control.table) or len(self.quarantine)
        if holds_blocks and not (has_work or self.transfers.is_waiting or self.control.has_orders):
            self._idle_wait.wait()

    def _take_orders(self) -> SchedulerOrders:
        policy = self.live_policy.values
        orders = SchedulerOrders(
            pull_deadline_seconds=policy.kv_pull_deadline,
            release_on_read=policy.release_on_read,
            lease_extension_seconds=policy.kv_lease_duration * 2 // 3,
        )
        self._fence.fill(orders)
        self.control.fill(orders)
        return orders

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        self._hold_late_blocks(connector_output)
        self._after_step(connector_output)

    @guards.contained(guards.nothing)
    def _hold_late_blocks(self, output: Any) -> None:
        """First and for itself: no fault of the bookkeeping may free blocks that a READ may still write to."""
        report = output.kv_connector_worker_meta or WorkerReport()
        self.quarantine.note(report.quarantined)
        for request_id in output.failed_recving or ():
            self.quarantine.hold(request_id)
        self.quarantine.end(report.ended)

    @guards.contained(guards.nothing)
    def _after_step(self, output: Any) -> None:
        report = output.kv_connector_worker_meta or WorkerReport()
        self.control.note_reads(report.reads)
        self.control.note_expired(report.expired)
        self.transfers.note(report.transfers)
        for request_id in output.finished_recving or ():
            self._end_pull(request_id)
        for request_id in output.finished_sending or ():
            self.control.ended(request_id)
            self._fence.lease_ended(request_id)

    def _end_pull(self, request_id: str) -> None:
        finished = self.transfers.finish(request_id)
        if finished is None:
            return
        leg, transfer = finished
        leg.settle(transfer.outcome)
        self.reporter.event(transfer)
        self._report_leg(leg)

    # ------------------------------------------------ the end of a request

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """vLLM asks whether to keep the blocks. We keep them only for a leg with an envelope and a free fence slot."""
        self.reporter.count_departure(request.request_id)
        leg = self._legs.get(request.request_id)
        params = request.kv_transfer_params
        if not params or params.get("do_remote_prefill") or request.status not in FINISHED_CLEANLY:
            return self._finish_without_lease(request, block_ids, leg)
        if leg is None:
            # Without an envelope P still serves stock peers; D keeps nothing, since nobody could be offered it.
            is_prefill = bool(params.get("do_remote_decode"))
            return super().request_finished(request, block_ids) if is_prefill else self._decline_lease(request)
        return self._finish_leg(request, block_ids, leg)

    def _finish_without_lease(
        self, request: Any, block_ids: Any, leg: Leg | None
    ) -> tuple[bool, dict[str, Any] | None]:
        params = request.kv_transfer_params
        if params and params.get("do_remote_prefill") and (leg is None or leg.offer is None):
            # Never scheduled. vLLM would notify the source so that it frees its blocks, but there is none to name.
            params["do_remote_prefill"] = False
        result = super().request_finished(request, block_ids)
        self._forget(request.request_id)
        return result[0], (None if leg is not None else result[1])

    def _decline_lease(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        self._stop_heartbeat(request.request_id)
        self._reqs_not_processed.add(request.request_id)
        self._forget(request.request_id)
        return False, None

    def _forget(self, request_id: str) -> None:
        self._legs.pop(request_id, None)
        self._fence.drop(request_id)

    def _finish_leg(self, request: Any, block_ids: Any, leg: Leg) -> tuple[bool, dict[str, Any] | None]:
        self._report_leg(leg)
        fence = self._fence.word_of(request.request_id)
        policy = for_request(self.live_policy.values, leg.envelope.policy)
        ttl_seconds = self.factory.ttl_seconds(policy, allow_partial=self._matcher.allow_partial)
        if fence is None or ttl_seconds <= 0 or not self.factory.fence_address_of_rank:
            return self._decline_lease(request)
        try:
            num_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
            chain = self._matcher.digest(request, leg, num_tokens)
        except Exception:
            guards.num_contained["request_finished"] += 1
            logger.exception("No lease for %s", request.request_id)
            return self._decline_lease(request)
        self._kv_lease_duration = policy.kv_lease_duration
        self.decoder_kv_blocks_ttl = policy.decoder_kv_blocks_ttl
        is_kept, exported = super().request_finished(request, block_ids)
        if not is_kept or exported is None:
            self._forget(request.request_id)
            return is_kept, None
        facts = GrantFacts(exported["remote_block_ids"], fence, num_tokens, ttl_seconds)
        return True, self._grant(request, leg, chain, facts)

    def _grant_nothing(self, request: Any, *_: Any) -> None:
        """vLLM keeps the blocks until the TTL; nobody is offered them."""
        self._legs.pop(request.request_id, None)

    @guards.contained(_grant_nothing)
    def _grant(self, request: Any, leg: Leg, chain: DigestChain, facts: GrantFacts) -> dict[str, Any] | None:
        """What goes into the engine's answer: P's offer for D; nothing of D's, whose lease travels by the feed."""
        lease = self.factory.make(request, leg, chain, facts)
        self.control.grant(lease)
        self._legs.pop(request.request_id, None)
        if self.role is Role.DECODE:
            return None
        reply = LegReply(
            offer=self.fleet_key.sign(OFFER_PURPOSE, lease.offer),
            decision=leg.decision or Decision.NO_PLACEMENT,
            num_pulled_tokens=leg.num_pulled_tokens,
            lease_id=lease.lease_id,
        )
        return {"backhaul": {field: getattr(reply, field) for field in reply.__struct_fields__}}

    def has_pending_push_work(self) -> bool:
        """Keeps the core stepping until quarantined reads have ended."""
        return len(self.quarantine) > 0
