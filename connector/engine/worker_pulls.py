"""Pulls of one worker rank: why each failed, its deadline, and what becomes of READs that outlive it."""

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from connector.engine import guards
from connector.engine.base_classes import num_consumers, rank_key
from connector.engine.deadlines import PullDeadlines
from connector.engine.late_reads import LateReads
from connector.engine.metadata import RankTransfer, SchedulerOrders, WorkerReport
from connector.engine.nixl_agent import FencedNixlAgent
from connector.engine.pulls import Pull, PullPhase, PullReason
from connector.protocol import TransferOutcome

logger = logging.getLogger("vllm.backhaul.pulls")

Blame = tuple[TransferOutcome, PullReason]
NO_DEADLINES: Mapping[str, float] = {}


class WorkerPulls:
    """``worker`` is vLLM's: its tables of requests that receive, and of their READs, are its own."""

    def __init__(self, worker: Any, agent: FencedNixlAgent, *, is_prefill: bool) -> None:
        self._worker = worker
        self._agent = agent
        self._is_prefill = is_prefill
        self._engine_deadline_seconds = 0.0
        self.deadlines = PullDeadlines()
        self.late = LateReads(agent, notify=not is_prefill)
        self.blame: Blame | None = None

    def __contains__(self, request_id: object) -> bool:
        is_known = request_id in self.deadlines or request_id in self._agent.fence_targets
        return is_known or request_id in self.late.request_ids or request_id in self._open_requests()

    @property
    def is_idle(self) -> bool:
        """Nothing is pulled, late or left over, so that a step may pass over all of this."""
        agent = self._agent
        return not (self.deadlines or self.late or agent.pulls or agent.stray_fences)

    def _open_requests(self) -> set[str]:
        return {pull.context.request_id for pull in self._agent.pulls.values()}

    @guards.contained(guards.nothing)
    def obey(self, orders: SchedulerOrders) -> None:
        self._engine_deadline_seconds = orders.pull_deadline_seconds
        self._agent.fence_targets.update(orders.fence_targets)

    def start(self, to_receive: dict[str, Any], own_deadlines: Mapping[str, float] = NO_DEADLINES) -> None:
        """``own_deadlines``: seconds by request, of those that don't follow the engine's."""
        if to_receive:
            self._start(to_receive, own_deadlines)

    @guards.contained(guards.nothing)
    def _start(self, to_receive: dict[str, Any], own_deadlines: Mapping[str, float]) -> None:
        for request_id, meta in to_receive.items():
            if meta.awaiting_kvs:
                self.deadlines.start(request_id, own_deadlines.get(request_id))

    # ------------------------------------------------ failures

    @contextlib.contextmanager
    def blaming(self, outcome: TransferOutcome, reason: PullReason) -> Iterator[None]:
        """What a failure that vLLM reports without a READ is put down to, while this part of its code runs."""
        before, self.blame = self.blame, (outcome, reason)
        try:
            yield
        finally:
            self.blame = before

    def is_wanted(self, request_id: str, meta: Any) -> bool:
        """False when its handshake ended after its deadline: the blocks belong to someone else by now."""
        is_pull = meta.awaiting_kvs or any(meta.local_block_ids)
        return not is_pull or self._worker._recving_metadata.get(request_id) is meta

    @guards.contained(guards.nothing)
    def let_source_go(self, meta: Any) -> None:
        """Of a pull that was given up before its READ: P's blocks have no other reader to wait for."""
        if self._is_prefill or meta.remote.engine_id not in self._worker._remote_agents:
            return
        plan = self._worker.tp_mappings[meta.remote.engine_id]
        agents = self._worker._remote_agents[meta.remote.engine_id]
        notice = f"{meta.remote.request_id}:{num_consumers(self._worker, plan)}".encode()
        for rank in plan.all_source_ranks:
            self._agent.send_notif(agents[rank_key(rank)], notif_msg=notice)

    def fail_unpostable(self, request_id: str) -> None:
        """Hands it back; READs of other ranks that were posted before are waited for by vLLM."""
        if request_id in self._worker._recving_metadata:
            with self.blaming(TransferOutcome.FAILED, PullReason.HOOK_FAILED):
                self._worker._handle_failed_transfer(request_id, None, self._worker._recv_failures, False)

    def _nothing_known(self, *_: Any) -> bool:
        return True

    @guards.contained(_nothing_known)
    def note_failure(self, request_id: str, handle: Any, report: WorkerReport) -> bool:
        """Names the reason; returns whether the peer or the way to it failed. vLLM repeats what it couldn't finish."""
        if handle is None:
            if request_id in self._worker._recving_metadata:
                outcome, reason = self.blame or (TransferOutcome.FAILED, PullReason.HANDSHAKE_FAILED)
                self._report_unposted(report, request_id, outcome, reason)
            return True
        pull = self._agent.pulls.get(id(handle))
        if pull is None:
            return True
        is_first = pull.phase is not PullPhase.ENDED or not pull.was_found_ended
        pull.was_found_ended = True
        if pull.phase is not PullPhase.ENDED:
            is_posted = pull.phase is not PullPhase.PREPARED
            pull.end(TransferOutcome.FAILED, PullReason.READ_FAILED if is_posted else PullReason.POST_FAILED)
        elif pull.outcome is TransferOutcome.COMPLETED:
            pull.end(TransferOutcome.FAILED, PullReason.RELEASE_FAILED)
        is_fenced = pull.outcome is TransferOutcome.FENCED
        if is_fenced and is_first:
            self._worker.xfer_stats.record_kv_expired_req()
        return is_first and not is_fenced

    def _report_unposted(
        self, report: WorkerReport, request_id: str, outcome: TransferOutcome, reason: PullReason
    ) -> None:
        waited_ms = self.deadlines.waited_ms(request_id)
        report.transfers.append(
            RankTransfer(request_id, outcome.value, reason.value, 0, 0, 0.0, waited_ms, waited_ms),
        )

    @guards.contained(guards.nothing)
    def account(self, received: set[str], report: WorkerReport) -> None:
        """Records what has ended, once each, and forgets it."""
        for request_id in received:
            self.deadlines.end(request_id)
            self._agent.fence_targets.pop(request_id, None)
        for key, pull in list(self._agent.pulls.items()):
            is_over = pull.phase is PullPhase.ENDED or pull.is_released
            if is_over and pull.context.request_id not in self._worker._recving_transfers:
                if pull.phase is not PullPhase.ENDED:
                    pull.end(TransferOutcome.FAILED, PullReason.POST_FAILED)
                report.transfers.append(pull.record())
                del self._agent.pulls[key]

    # ------------------------------------------------ deadline and quarantine

    @guards.contained(guards.nothing)
    def enforce_deadlines(self, report: WorkerReport) -> None:
        """A late pull is handed back for recompute. Its READ can't be cancelled, so its handle lives on here."""
        for request_id in self.deadlines.passed(self._engine_deadline_seconds):
            if request_id in self._worker._recving_metadata:
                self._enforce(request_id, report)
            else:
                self.deadlines.end(request_id)

    @guards.contained(guards.nothing)
    def _enforce(self, request_id: str, report: WorkerReport) -> None:
        worker = self._worker
        seconds = self.deadlines.seconds(request_id, self._engine_deadline_seconds)
        if request_id in worker._recving_transfers:
            late = self._late_pulls(request_id, seconds)
            if not late:
                return
            self._quarantine(request_id, late, report)
        else:
            self._report_unposted(report, request_id, TransferOutcome.TIMEOUT, PullReason.HANDSHAKE_DEADLINE)
        self.deadlines.end(request_id)
        worker._recv_failures.add(request_id)
        logger.warning("Pull for %s passed its deadline of %.1f s; recomputing.", request_id, seconds)

    def _late_pulls(self, request_id: str, seconds: float) -> list[Pull]:
        """READs that a fresh look still finds under way: vLLM looks once a step, which may outlast the deadline.

        The fence is posted by that look, so that it has a deadline of its own. A READ that has ended is left to vLLM's
        look of this step; one that vLLM then could not release is late at the next.
        """
        handles = self._worker._recving_transfers[request_id]
        pulls = [pull for handle in handles if (pull := self._agent.pulls.get(id(handle))) is not None]
        now = time.perf_counter()
        late = []
        for pull in pulls:
            if self.late.state_of(pull.handle) == "PROC":
                is_late = pull.phase is not PullPhase.FENCE or now - pull.fence_posted_at > seconds
            else:
                is_late = pull.was_found_ended
            if is_late:
                late.append(pull)
        return pulls if late else []

    def _quarantine(self, request_id: str, pulls: list[Pull], report: WorkerReport) -> None:
        meta = self._worker._recving_metadata[request_id]
        taken = {id(pull.handle) for pull in pulls}
        open_handles = self._worker._recving_transfers[request_id]
        self._worker._recving_transfers[request_id] = [handle for handle in open_handles if id(handle) not in taken]
        is_still_read = False
        for pull in pulls:
            del self._agent.pulls[id(pull.handle)]
            if pull.phase is not PullPhase.ENDED:
                is_fencing = pull.phase is PullPhase.FENCE
                pull.end(TransferOutcome.TIMEOUT, PullReason.FENCE_DEADLINE if is_fencing else PullReason.READ_DEADLINE)
            # A fence READ writes to its landing word only, so it keeps no block back.
            self._agent.let_fence_go(pull)
            report.transfers.append(pull.record())
            is_still_read |= self.late.add(pull, meta)
        if is_still_read:
            report.quarantined.append(request_id)
        self._worker.xfer_stats.record_failed_transfer()

    @guards.contained(guards.nothing)
    def look_at_late_reads(self, report: WorkerReport) -> None:
        self._agent.poll_stray_fences()
        report.ended.extend(self.late.poll())

    # ------------------------------------------------ peers that must stay connected

    def _every_engine(self) -> set[str]:
        return set(self._worker._remote_agents)

    @guards.contained(_every_engine)
    def engines_still_read(self) -> set[str]:
        late = {meta.remote.engine_id for meta in self.late.metas.values()}
        return late | self._agent.stray_fences.engines

    def lent_metas(self) -> dict[str, Any]:
        """As entries of vLLM's table of requests that receive, under keys that no request has."""
        engines = self.engines_still_read()
        return {f"\0{engine}": SimpleNamespace(remote=SimpleNamespace(engine_id=engine)) for engine in engines}
