"""Worker seams of vLLM 0.32 on releases before 0.30: a mixin between vLLM's worker class and ours.

Those releases report ``get_finished() -> (sent, received)`` and no failures by request. Three faults of theirs are
closed here, since each would kill the engine or corrupt KV once our checks let pulls fail: a request whose peer can't
be reached is looked up as a known peer (0.21.0); one of several failed READs reports its request while the others
still write (0.22 to 0.29); a handle that can't be released raises out of the step (all).
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

logger = logging.getLogger("vllm.backhaul.worker")


@dataclass(frozen=True)
class DeclinedSource:
    """A source whose blocks this engine won't read: its engine and the request that they are held for."""

    engine_id: str
    request_id: str


@dataclass
class TransferResults:
    """As vLLM's ``KVConnectorTransferResults`` of 0.30: request ids; the failed ones are received ones too."""

    finished_sending: set[str]
    finished_recving: set[str]
    failed_recving: set[str]


class FailureInbox:
    """Stands where vLLM keeps requests whose receive failed (a set in 0.21.0, a queue later): to vLLM always empty.

    What vLLM's handshake thread puts here waits for the engine's thread; what that thread puts here itself, while it
    posts READs, is handed on at once, so that its cause is still known.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._request_ids: deque[str] = deque()
        self._note = note
        self._thread = threading.get_ident()

    def add(self, request_id: str) -> None:
        if threading.get_ident() == self._thread:
            self._note(request_id)
        else:
            self._request_ids.append(request_id)

    put = add

    def empty(self) -> bool:
        return True

    def clear(self) -> None:
        """vLLM clears what it believes it has read."""

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def take(self) -> list[str]:
        taken = []
        while self._request_ids:
            taken.append(self._request_ids.popleft())
        return taken


class OlderWorkerSeams:
    """``super()`` is vLLM's worker of 0.21.0 to 0.29.0."""

    nixl_wrapper: Any
    xfer_stats: Any
    _recving_metadata: dict[str, Any]
    _recving_transfers: dict[str, list[Any]]
    _reqs_to_send: dict[str, float]
    _engine_last_active: dict[str, float]
    _remote_agents: dict[str, dict[Any, str]]
    tp_mappings: dict[str, Any]
    world_size: int
    _agent: Any

    def __init__(self, vllm_config: Any, engine_id: str, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)  # type: ignore[call-arg]  # vLLM's class
        self._failed_recv_reqs = FailureInbox(self._note_unposted)
        self._handle_failed_transfer = self._note_failure  # type: ignore[method-assign]  # what vLLM's own code calls
        self._recv_failures: set[str] = set()
        self._load_errors: set[int] = set()
        if not hasattr(self, "expected_consumer_notifications_by_req"):
            self.expected_consumer_notifications_by_req: dict[str, int] = {}

    def start_load_kv(self, metadata: Any) -> None:
        super().start_load_kv(metadata)  # type: ignore[misc]  # vLLM's class
        for source in metadata.declined_sources:
            self._let_go(source)

    def _let_go(self, source: DeclinedSource) -> None:
        """A hint: a source that isn't connected, or can't be told, frees its blocks when they expire."""
        try:
            agents = self._remote_agents.get(source.engine_id, {})
            plan = self.tp_mappings.get(source.engine_id)
            ranks = plan.all_source_ranks if plan is not None else ()
            consumers = getattr(plan, "local_consumers", self.world_size)
            for agent in [agents[key] for rank in ranks for key in ((0, rank), rank) if key in agents]:
                self.nixl_wrapper.send_notif(agent, notif_msg=f"{source.request_id}:{consumers}".encode())
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            logger.info("The source of %s was not told that it isn't read: %s", source.request_id, error)

    def _note_unposted(self, request_id: str) -> None:
        """A receive that failed without a READ, or whose READ vLLM has let go of before it was posted."""
        if any(pull.context.request_id == request_id for pull in self._agent.pulls.values()):
            # That READ's own end names the cause.
            self._recv_failures.add(request_id)
        else:
            self._handle_failed_transfer(request_id, None, self._recv_failures, False)

    def _note_failure(self, req_id: str, handle: Any, *given: Any, **named: Any) -> bool:
        """vLLM's handshake thread and its failed posts come here; our halves' order of overrides is kept below it."""
        if given or named:
            return bool(type(self)._handle_failed_transfer(self, req_id, handle, *given, **named))
        if handle is None:
            self._failed_recv_reqs.add(req_id)
        elif not type(self)._handle_failed_transfer(self, req_id, handle, self._recv_failures):
            self._recving_transfers[req_id].append(handle)
        return True

    def get_transfer_results(self) -> TransferResults:
        """As of 0.30: failed requests are named, and only once none of their READs is under way."""
        sort_deadlines(self._reqs_to_send)
        for request_id in self._failed_recv_reqs.take():
            self._note_unposted(request_id)
        sent, received = super().get_finished()  # type: ignore[misc]  # vLLM's class
        failed = self._end_failed()
        return TransferResults(sent, received | failed, failed)

    def _end_failed(self) -> set[str]:
        ended: set[str] = set()
        for request_id in tuple(self._recv_failures):
            if request_id in self._recving_transfers:
                continue
            self._recv_failures.discard(request_id)
            meta = self._recving_metadata.pop(request_id, None)
            if meta is not None:
                # One full-attention group only: others are refused before a pull on these releases.
                self._load_errors.update(meta.local_block_ids[0])
                ended.add(request_id)
        return ended

    def get_block_ids_with_load_errors(self) -> set[int]:
        errors, self._load_errors = self._load_errors, set()
        return errors | set(super().get_block_ids_with_load_errors())  # type: ignore[misc]  # vLLM's class

    def _pop_done_transfers(self, transfers: dict[str, list[Any]]) -> set[str]:
        """Requests whose READs have all ended well; failed ones stay out, and are ended by ``_end_failed``."""
        done: set[str] = set()
        for request_id, handles in list(transfers.items()):
            open_handles = [handle for handle in handles if not self._has_ended(request_id, handle)]
            if open_handles:
                transfers[request_id] = open_handles
                continue
            del transfers[request_id]
            if request_id not in self._recv_failures:
                done.add(request_id)
        return done

    def _has_ended(self, request_id: str, handle: Any) -> bool:
        try:
            state = self.nixl_wrapper.check_xfer_state(handle)
            if state == "PROC":
                return False
            if state == "DONE":
                self.xfer_stats.record_transfer(self.nixl_wrapper.get_xfer_telemetry(handle))
                self.nixl_wrapper.release_xfer_handle(handle)
                return True
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            logger.info("A READ for %s has failed: %s", request_id, error)
        return self._handle_failed_transfer(request_id, handle, self._recv_failures)

    def _handle_failed_transfer(
        self,
        req_id: str,
        handle: Any,
        failed_req_ids: set[str] | None = None,
        record_failed_transfer: bool = True,
    ) -> bool:
        """False: the handle must be kept, since its READ may still write. vLLM's own would report the request now."""
        (self._recv_failures if failed_req_ids is None else failed_req_ids).add(req_id)
        if record_failed_transfer:
            self.xfer_stats.record_failed_transfer()
        if handle is None:
            return True
        try:
            self.nixl_wrapper.release_xfer_handle(handle)
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            logger.warning("A failed READ of %s can't be released yet: %s", req_id, error)
            return False
        return True

    def _engines_with_inflight_transfers(self) -> set[str]:
        metas = (self._recving_metadata.get(request_id) for request_id in self._recving_transfers)
        return {meta.remote.engine_id for meta in metas if meta is not None}

    def _evict_stale_engines(self) -> None:
        """Called by vLLM from 0.24 on, which there forgets peers that it still reads from."""
        now = time.perf_counter()
        for engine_id in self._engines_with_inflight_transfers() & set(self._engine_last_active):
            self._engine_last_active[engine_id] = now
        super()._evict_stale_engines()  # type: ignore[misc]  # vLLM's class

    def _is_turn2_read_expired(self, meta: Any) -> bool:
        """Before 0.26 a reader doesn't know the expiry; the fence decides alone."""
        in_vllm = getattr(super(), "_is_turn2_read_expired", None)
        return bool(in_vllm(meta)) if in_vllm is not None else False


class OrderedReaper:
    """``super()`` is vLLM's worker of 0.30.0, whose reaper stops at the first deadline that has not passed."""

    _reqs_to_send: dict[str, float]

    def get_transfer_results(self) -> Any:
        sort_deadlines(self._reqs_to_send)
        return super().get_transfer_results()  # type: ignore[misc]  # vLLM's class

    def _handle_failed_transfer(
        self, req_id: str, handle: Any, failed_req_ids: set[str] | None = None, _record_failed_transfer: bool = True
    ) -> bool:
        """It counts every failure as one of the transport, expired leases too."""
        return bool(super()._handle_failed_transfer(req_id, handle, failed_req_ids))  # type: ignore[misc]  # as above


class ReplacedPeers:
    """``super()`` is vLLM's worker of 0.31.0, where the cleaning up after peers has another name."""

    def _cleanup_replaced_remote_engines(self) -> None:
        """Called by vLLM; goes the way that ours overrides."""
        self._cleanup_remote_engines()

    def _cleanup_remote_engines(self) -> None:
        super()._cleanup_replaced_remote_engines()  # type: ignore[misc]  # vLLM's class


def sort_deadlines(deadlines: dict[str, float]) -> None:
    """In place, earliest first; nothing is moved where they are in order already."""
    values = list(deadlines.values())
    if any(later < earlier for earlier, later in pairwise(values)):
        ordered = sorted(deadlines.items(), key=lambda item: item[1])
        deadlines.clear()
        deadlines.update(ordered)
