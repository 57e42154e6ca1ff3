"""Leases as a worker rank keeps them: fence words, deadlines, early releases, and which reads must not free blocks."""

import time
from typing import Any

from connector.engine import guards
from connector.engine.fence import FenceMemory
from connector.engine.metadata import SchedulerOrders
from connector.engine.notices import NoticeFate


class WorkerLeases:
    """``worker`` is vLLM's: the deadlines of held requests, and what it knows of running ones, are its own."""

    def __init__(self, worker: Any, memory: FenceMemory) -> None:
        self._worker = worker
        self._memory = memory
        self._kept: set[str] = set()
        self._early_releases: set[str] = set()

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._kept or request_id in self._early_releases

    @guards.contained(guards.nothing)
    def obey(self, orders: SchedulerOrders) -> None:
        """Before vLLM's part of a step: a word stands before its request can be offered."""
        for request_id in orders.dropped_words:
            self._memory.drop_word(request_id)
        for request_id, (slot, generation) in orders.fence_words.items():
            self._memory.raise_word(request_id, slot, generation)
        self._kept.update(orders.kept_requests)
        self._kept.difference_update(orders.unkept_requests)

    @guards.contained(guards.nothing)
    def follow(self, orders: SchedulerOrders) -> None:
        """After vLLM's part, which knows this step's new leases."""
        now = time.perf_counter()
        for request_id, remaining_seconds in orders.deadlines.items():
            if request_id in self._worker._reqs_to_send:
                self._worker._reqs_to_send[request_id] = now + remaining_seconds
        for request_id in orders.releases:
            self._release(request_id)

    def _release(self, request_id: str) -> None:
        """Frees early, by the same route as a read: the reaper would count the release as an expiry."""
        worker = self._worker
        if worker._reqs_to_send.pop(request_id, None) is None:
            return
        worker._reqs_to_process.discard(request_id)
        worker.consumer_notification_counts_by_req.pop(request_id, None)
        worker.expected_consumer_notifications_by_req.pop(request_id, None)
        self._early_releases.add(request_id)

    def fate_of(self, request_id: str) -> NoticeFate:
        """What becomes of the notice of a read: a kept lease outlives it, and a running request has no lease yet."""
        if request_id in self._worker._reqs_to_send:
            return NoticeFate.KEEP if request_id in self._kept else NoticeFate.PASS
        is_running = request_id in self._worker._reqs_to_process
        return NoticeFate.WAIT if is_running else NoticeFate.PASS

    def take_early_releases(self) -> set[str]:
        released, self._early_releases = self._early_releases, set()
        return released

    def _drop_all_words(self, _finished: set[str]) -> None:
        self._memory.drop_all_words()

    @guards.contained(_drop_all_words)
    def drop_words(self, finished: set[str]) -> None:
        """Must run before the scheduler can learn that the blocks are free."""
        for request_id in finished:
            self._memory.drop_word(request_id)

    @guards.contained(guards.nothing)
    def forget(self, finished: set[str]) -> None:
        self._kept -= finished
