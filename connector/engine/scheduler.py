"""Scheduler half: verifies offers before vLLM sees them, grants leases, applies policy, reports to the agent."""

from typing import Any

from connector.engine import guards
from connector.engine.base_classes import RELEASE, SchedulerBase, readable
from connector.engine.cache_reset import CacheReset
from connector.engine.cache_shape import cache_shape
from connector.engine.cpu import IdleWait
from connector.engine.demand import BlockDemand
from connector.engine.endings import KeptAndParams, RequestEndings
from connector.engine.fence_orders import FenceOrders
from connector.engine.fingerprint import model_fingerprint
from connector.engine.grants import LeaseFactory
from connector.engine.kv_layout import describe_reader, layout_of
from connector.engine.lease_control import LeaseControl
from connector.engine.legs import Leg
from connector.engine.matcher import LegMatcher, clear_remote_fields
from connector.engine.matching import Match
from connector.engine.metadata import BackhaulMetadata, SchedulerOrders
from connector.engine.offers import PURPOSE as OFFER_PURPOSE
from connector.engine.offers import KvOffer
from connector.engine.options import EngineOptions
from connector.engine.peers import PeerBook
from connector.engine.policy import LivePolicy
from connector.engine.quarantine import BlockQuarantine
from connector.engine.reporting import EngineReporter
from connector.engine.results import WorkerResults
from connector.engine.transfers import TransferBook
from connector.protocol import Decision, PolicyValues, Role
from connector.signing import FleetKeyFile


class BackhaulScheduler(SchedulerBase):
    """Seams of vLLM 0.32.0; each override says what vLLM does there."""

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any, options: EngineOptions) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self.role = Role.PREFILL if options.is_prefill else Role.DECODE
        self.live_policy = LivePolicy(options.policy, RELEASE.unsupported_fields)
        self.fleet_key = FleetKeyFile(options.fleet_key_file)
        self.peers = PeerBook()
        fails_by_request = RELEASE.reports_failed_receives
        shape = readable(cache_shape(kv_cache_config, vllm_config, fails_by_request=fails_by_request))
        fingerprint = model_fingerprint(vllm_config, shape)
        self.matcher = LegMatcher(
            fleet_key=self.fleet_key,
            role=self.role,
            fingerprint=fingerprint,
            block_size=self.block_size,
            shape=shape,
            peers=self.peers,
        )
        describe_reader(self.matcher.reader, self)
        self.legs: dict[str, Leg] = {}
        self._num_spared = 0
        self.demand = BlockDemand(self.block_size, len(kv_cache_config.kv_cache_groups))
        self.fence = FenceOrders()
        bytes_per_block = max(
            group.kv_cache_spec.page_size_bytes * len(group.layer_names) for group in kv_cache_config.kv_cache_groups
        )
        self.factory = LeaseFactory(self, options.engine_name, self.role, fingerprint, bytes_per_block, self.sign_offer)
        self.control = LeaseControl(self.factory, self.live_policy, self.demand)
        self.quarantine = BlockQuarantine()
        self.cache_reset = CacheReset(self)
        self.transfers = TransferBook(options.engine_name, self.role)
        self.reporter = EngineReporter(self, options)
        self.control.reporter = self.reporter
        self.pull_deadlines: dict[str, float] = {}
        self._ordered_policy: PolicyValues | None = None
        self._endings = RequestEndings(self, super().request_finished)
        self._results = WorkerResults(self)
        self.idle_wait = IdleWait(options.idle_wait_ms)

    def sign_offer(self, offer: KvOffer) -> str:
        return self.fleet_key.current.sign(OFFER_PURPOSE, offer)

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        self.quarantine.bind(kv_cache_manager)
        self.cache_reset.bind(kv_cache_manager)
        self.control.bind(kv_cache_manager.block_pool)
        self.reporter.bind(kv_cache_manager.block_pool)

    def set_xfer_handshake_metadata(self, metadata: dict[tuple[int, int], Any]) -> None:
        """vLLM serves this to peers; it also brings every rank's fence address here, before the first request."""
        for (pp_rank, tp_rank), payload in metadata.items():
            if pp_rank == 0:
                self.factory.fence_address_of_rank[tp_rank] = payload.fence_address
        self._note_layout(metadata)
        super().set_xfer_handshake_metadata(metadata)

    @guards.contained(guards.nothing)
    def _note_layout(self, metadata: dict[tuple[int, int], Any]) -> None:
        """What can't be read is not compared; the handshake still decides."""
        self.factory.layout = self.matcher.reader.layout = layout_of(next(iter(metadata.values())))

    def shutdown(self) -> None:
        self._close_link()
        super().shutdown()

    @guards.contained(guards.nothing)
    def _close_link(self) -> None:
        self.reporter.close()

    # ------------------------------------------------ arrival

    def on_new_request(self, request: Any) -> None:
        """vLLM starts heartbeats here from remote fields, so they must be ours, or absent, before it looks."""
        self._note_arrival(request)
        self._open_leg(request)
        self._num_spared = self.matcher.shape.num_spared if request.request_id in self.legs else 0
        super().on_new_request(request)

    def _prefill_backoff(self) -> int:
        """How many tokens vLLM's ``on_new_request`` takes off a prompt at P, for D to compute them.

        It takes one for a recurrent state, but none for a sliding window, which has to end at that token as well. A
        reader without digests expects them all.
        """
        return max(int(super()._prefill_backoff()), self._num_spared)

    @guards.contained(guards.nothing)
    def _note_arrival(self, request: Any) -> None:
        self.reporter.count_arrival(request.request_id)
        self.cache_reset.learn_queue()
        self.demand.arrived(request)

    def _drop_leg(self, request: Any) -> None:
        """After an exception: no leg. The source of a verified offer is still told, since it waits for a reader."""
        self.legs.pop(request.request_id, None)
        if request.kv_transfer_params:
            clear_remote_fields(request.kv_transfer_params)
            self._name_source(request.kv_transfer_params)

    @guards.contained(guards.nothing)
    def _name_source(self, params: dict[str, Any]) -> None:
        if (offer := self.matcher.source_of(params)) is not None:
            params.update(offer.remote_params(1, 0))

    @guards.contained(_drop_leg)
    def _open_leg(self, request: Any) -> None:
        self.control.pump()
        if not request.kv_transfer_params:
            return
        leg = self.matcher.open(request, request.kv_transfer_params, self.live_policy.values)
        if leg is not None:
            self.legs[request.request_id] = leg
            self.control.adopt(leg.envelope)

    # ------------------------------------------------ matching

    @guards.contained(lambda *_: (0, False))
    def _recompute(self, request: Any, _num_computed_tokens: int) -> tuple[int, bool]:
        """After an exception: no remote tokens, and the source is notified, since it waits for a reader in vain."""
        leg, params = self.legs.get(request.request_id), request.kv_transfer_params
        if leg is not None and params and not params.get("_remote_blocks_processed"):
            leg.match, leg.decision = Match(decision=Decision.REJECTED), Decision.REJECTED
            self.matcher.write_back(leg, leg.match, params, is_fault=True)
        return 0, False

    @guards.contained(_recompute)
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """vLLM asks each step while a request waits, and after a failed pull or preemption; one pull at most."""
        self.control.pump()
        self.control.room.make_room(request, num_computed_tokens)
        leg = self.legs.get(request.request_id)
        params = request.kv_transfer_params
        if leg is None or not params or params.get("_remote_blocks_processed"):
            return 0, False
        match = leg.match = self.matcher.match(request, leg, num_computed_tokens)
        leg.decision, leg.num_local_tokens = match.decision, num_computed_tokens
        self.matcher.write_back(leg, match, params)
        return match.num_pull_tokens, match.num_pull_tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._before_alloc(request, num_external_tokens)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    @guards.contained(guards.nothing)
    def _before_alloc(self, request: Any, num_external_tokens: int) -> None:
        self.control.room.note_scheduled(request.request_id)
        leg = self.legs.get(request.request_id)
        params = request.kv_transfer_params
        if leg is None or not params or params.get("_remote_blocks_processed"):
            return
        self.fence.raise_word(request.request_id)
        if num_external_tokens > 0 and leg.offer is not None:
            self.fence.compare(request.request_id, leg.offer)
            self.transfers.start(request.request_id, leg)
            if leg.envelope.policy is not None and leg.envelope.policy.kv_pull_deadline is not None:
                self.pull_deadlines[request.request_id] = leg.envelope.policy.kv_pull_deadline
        else:
            self.report_leg(leg)

    def report_leg(self, leg: Leg) -> None:
        if not leg.is_reported:
            leg.is_reported = True
            self.reporter.event(leg.decided())

    # ------------------------------------------------ the step

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self._before_step(scheduler_output)
        meta = super().build_connector_meta(scheduler_output)
        meta.__class__ = BackhaulMetadata
        meta.orders = self._take_orders()
        return meta

    @guards.contained(guards.nothing)
    def _before_step(self, scheduler_output: Any) -> None:
        self.control.pump()
        # vLLM's own is fixed at start, by the start-up constant: a shorter lease would end between two heartbeats.
        self._heartbeat_interval = self.live_policy.values.kv_lease_duration / 6
        self.cache_reset.pump()
        self.control.room.keep_low_water(scheduler_output)
        self.reporter.count_step(scheduler_output)
        self._wait_if_idle(scheduler_output)

    def _wait_if_idle(self, scheduler_output: Any) -> None:
        has_work = scheduler_output.total_num_scheduled_tokens or self._reqs_need_recv or self._reqs_need_send
        holds_blocks = len(self.control.table) or len(self.quarantine)
        is_ending = self.control.has_orders or self.control.table.num_ending
        if holds_blocks and not (has_work or self.transfers.is_waiting or is_ending):
            self.idle_wait.wait()

    def _take_orders(self) -> SchedulerOrders | None:
        """``None`` when there is nothing that the workers don't know yet, as in most steps."""
        policy = self.live_policy.values
        has_orders = self.pull_deadlines or self.fence.has_orders or self.control.has_orders
        if policy is self._ordered_policy and not has_orders:
            return None
        self._ordered_policy = policy
        orders = SchedulerOrders(
            pull_deadline_seconds=policy.kv_pull_deadline,
            lease_extension_seconds=max(1, policy.kv_lease_duration * 2 // 3),
        )
        orders.pull_deadlines, self.pull_deadlines = self.pull_deadlines, {}
        for source in (self.fence, self.control):
            if source.has_orders:
                self._fill(orders, source)
        return orders

    @guards.contained(guards.nothing)
    def _fill(self, orders: SchedulerOrders, source: FenceOrders | LeaseControl) -> None:
        """What one source could not hand over stays with it for the next step."""
        source.fill(orders)

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        self._results.follow(connector_output)

    # ------------------------------------------------ the end of a request

    def request_finished(self, request: Any, block_ids: Any) -> KeptAndParams:
        """vLLM asks whether to keep the blocks, and for what the response carries."""
        self._note_departure(request.request_id)
        return self._endings.finish(request, block_ids)

    @guards.contained(guards.nothing)
    def _note_departure(self, request_id: str) -> None:
        self.reporter.count_departure(request_id)
        self.demand.left(request_id)

    @guards.contained(lambda *_: False)
    def relieve(self) -> bool:
        """vLLM asks before it preempts a request for want of blocks: whether leases are giving some back."""
        return self.control.room.relieve()

    @guards.contained(lambda *_: True)
    def has_pending_push_work(self) -> bool:
        """Keeps the core stepping until quarantined reads have ended, and a reset of the cache is answered."""
        return len(self.quarantine) > 0 or self.cache_reset.is_pending
