"""What the workers report after a step: ends of pulls, reads and ends of leases, blocks that a late READ may write to.

Scheduler thread only; runs inside vLLM's ``update_connector_output``, after vLLM's own part and before it frees blocks.
"""

from typing import Any

from connector.engine import guards
from connector.engine.metadata import WorkerReport

NOTHING = WorkerReport()
"""Of most steps; never changed."""


class WorkerResults:
    """``scheduler`` is ours."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def follow(self, output: Any) -> None:
        report = output.kv_connector_worker_meta or NOTHING
        if report is not NOTHING or output.failed_recving or self._scheduler.quarantine:
            self._hold_late_blocks(output, report)
        if report is not NOTHING or output.finished_recving or output.finished_sending:
            self._after_step(output, report)

    @guards.contained(guards.nothing)
    def _hold_late_blocks(self, output: Any, report: WorkerReport) -> None:
        """First and for itself: no fault of the bookkeeping may free blocks that a READ may still write to."""
        self._scheduler.quarantine.follow(output, report)

    @guards.contained(guards.nothing)
    def _after_step(self, output: Any, report: WorkerReport) -> None:
        scheduler = self._scheduler
        guards.note_workers(report.contained)
        scheduler.control.note_reads(report.reads)
        scheduler.control.note_expired(report.expired)
        scheduler.transfers.note(report.transfers)
        for request_id in output.finished_recving or ():
            self._end_pull(request_id)
        for request_id in output.finished_sending or ():
            lease = scheduler.control.ended(request_id)
            scheduler.fence.lease_ended(request_id, lease.slot if lease is not None else None)

    def _end_pull(self, request_id: str) -> None:
        finished = self._scheduler.transfers.finish(request_id)
        if finished is None:
            return
        leg, transfer = finished
        leg.settle(transfer.outcome)
        self._scheduler.reporter.event(transfer)
        self._scheduler.report_leg(leg)
