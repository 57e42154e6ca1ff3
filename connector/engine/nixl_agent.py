"""A delegating NIXL agent: one lock, one clock per pull, a fence after each READ, notices of kept leases held back.

vLLM calls it where it would call NIXL's own agent. To vLLM a pull stays in progress until the fence has answered, so
that the source is notified, and the blocks count as received, only after the proof that they were still held.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from connector.engine.fence import WORD_BYTES, FenceMemory
from connector.engine.metadata import FenceTarget
from connector.engine.pulls import Pull, PullPhase, ReadContext
from connector.protocol import TransferOutcome

logger = logging.getLogger("vllm.backhaul.nixl")

READ_AHEAD_NOTICE = b"HB:backhaul-read"
"""Sent before a READ so that an idle source polls faster while it serves it. It looks like a heartbeat for a
request that doesn't exist, so a stock peer ignores it."""
SERVING_SECONDS = 0.5
"""How long a source polls faster after the notice, unless the read ends before."""


class FencedNixlAgent:
    """Everything not named here is passed through under the lock: NIXL's own sync mode is NONE."""

    def __init__(self, agent: Any, fence: FenceMemory, is_kept: Callable[[str], bool]) -> None:
        self._agent = agent
        self._fence = fence
        self._is_kept = is_kept
        self._lock = threading.RLock()
        self._stashed_notifs: dict[str, list[bytes]] = {}
        self.context: ReadContext | None = None
        self.fence_targets: dict[str, FenceTarget] = {}
        self.pulls: dict[int, Pull] = {}
        self._reads: list[str] = []
        self._passed_reads: set[str] = set()
        self._serving_until = 0.0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._agent, name)
        if not callable(attribute):
            return attribute

        def locked(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return attribute(*args, **kwargs)

        return locked

    # ------------------------------------------------ the READ

    def make_prepped_xfer(self, operation: str, *args: Any, notif_msg: bytes = b"", **kwargs: Any) -> Any:
        """The notification is taken off the READ; it is sent after the fence."""
        with self._lock:
            if operation != "READ" or self.context is None:
                return self._agent.make_prepped_xfer(operation, *args, notif_msg=notif_msg, **kwargs)
            handle = self._agent.make_prepped_xfer(operation, *args, **kwargs)
            self.pulls[id(handle)] = Pull(
                context=self.context,
                handle=handle,
                notification=notif_msg,
                fence=self.fence_targets.get(self.context.request_id),
            )
            return handle

    def transfer(self, handle: Any, *args: Any, **kwargs: Any) -> str:
        pull = self.pulls.get(id(handle))
        if pull is not None:
            self._announce(pull)
        start = time.perf_counter()
        if pull is not None:
            # Before the call: one that raises ends the pull, and its times count from here.
            pull.posted_at = start
        with self._lock:
            state: str = self._agent.transfer(handle, *args, **kwargs)
        if pull is not None:
            pull.post_ms = (time.perf_counter() - start) * 1e3
            pull.phase = PullPhase.DATA
        return state

    def _announce(self, pull: Pull) -> None:
        try:
            with self._lock:
                self._agent.send_notif(pull.context.remote_agent, notif_msg=READ_AHEAD_NOTICE)
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            # Only a hint: without it the read is slower, not wrong.
            logger.info("Read-ahead notice for %s was not sent: %s", pull.context.request_id, error)

    def check_xfer_state(self, handle: Any) -> str:
        """``DONE`` only after a matching fence word; ``ERR`` also for a lease that ended meanwhile."""
        with self._lock:
            pull = self.pulls.get(id(handle))
            if pull is None or pull.phase is PullPhase.PREPARED:
                return str(self._agent.check_xfer_state(handle))
            if pull.phase is PullPhase.DATA:
                self._advance_data(pull)
            if pull.phase is PullPhase.FENCE:
                self._advance_fence(pull)
            if pull.phase is not PullPhase.ENDED:
                return "PROC"
            return "DONE" if pull.outcome is TransferOutcome.COMPLETED else "ERR"

    def _advance_data(self, pull: Pull) -> None:
        state = self._agent.check_xfer_state(pull.handle)
        if state == "PROC":
            return
        if state != "DONE":
            pull.end(TransferOutcome.FAILED, f"nixl_{state.lower()}")
            return
        telemetry = self._agent.get_xfer_telemetry(pull.handle)
        pull.num_bytes, pull.num_descriptors = int(telemetry.totalBytes), int(telemetry.descCount)
        self._post_fence(pull)

    def _post_fence(self, pull: Pull) -> None:
        target = pull.fence
        address = target.address_of_rank.get(pull.context.remote_rank) if target else None
        if target is None or address is None:
            pull.end(TransferOutcome.FENCED, "no_fence_word")
            return
        landing = self._fence.take_landing()
        if landing is None:
            pull.end(TransferOutcome.FENCED, "too_many_pulls")
            return
        pull.landing = landing
        local = self._agent.get_xfer_descs([(self._fence.word_address(landing), WORD_BYTES, 0)], "DRAM")
        remote = self._agent.get_xfer_descs([(address, WORD_BYTES, 0)], "DRAM")
        pull.fence_handle = self._agent.initialize_xfer("READ", local, remote, pull.context.remote_agent)
        pull.phase, pull.expected_word = PullPhase.FENCE, target.generation
        pull.fence_posted_at = time.perf_counter()
        self._agent.transfer(pull.fence_handle)

    def _advance_fence(self, pull: Pull) -> None:
        state = self._agent.check_xfer_state(pull.fence_handle)
        if state == "PROC":
            return
        is_held = False
        if state == "DONE" and pull.landing is not None:
            is_held = self._fence.value(pull.landing) == pull.expected_word
            # After an error the word may still be written to, so it is only given back after a clean end.
            self._agent.release_xfer_handle(pull.fence_handle)
            self._fence.return_landing(pull.landing)
        if not is_held:
            pull.end(TransferOutcome.FENCED, "lease_ended" if state == "DONE" else f"fence_{state.lower()}")
            return
        pull.end(TransferOutcome.COMPLETED)
        self._notify_source(pull)

    def _notify_source(self, pull: Pull) -> None:
        if not pull.notification:
            return
        try:
            self._agent.send_notif(pull.context.remote_agent, notif_msg=pull.notification)
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            # The data is good; the source frees its blocks when the lease expires.
            logger.warning("Read notice for %s was not sent: %s", pull.context.request_id, error)

    # ------------------------------------------------ notifications

    def get_new_notifs(self, *args: Any, **kwargs: Any) -> dict[str, list[bytes]]:
        """Read notices of kept leases are counted and held back: vLLM would free the blocks."""
        with self._lock:
            fresh: dict[str, list[bytes]] = self._agent.get_new_notifs(*args, **kwargs)
            stashed, self._stashed_notifs = self._stashed_notifs, {}
            for messages in fresh.values():
                self._note_serving(messages)
        passed: dict[str, list[bytes]] = {}
        for source in (stashed, fresh):
            for agent, messages in source.items():
                kept = [message for message in messages if not self._hold_back(message)]
                if kept:
                    passed.setdefault(agent, []).extend(kept)
        return passed

    def progress(self) -> None:
        """Lets NIXL serve peers while the engine is idle. Safe from another thread."""
        with self._lock:
            for agent, messages in self._agent.get_new_notifs().items():
                self._stashed_notifs.setdefault(agent, []).extend(messages)
                self._note_serving(messages)

    def _note_serving(self, messages: list[bytes]) -> None:
        if READ_AHEAD_NOTICE in messages:
            self._serving_until = time.perf_counter() + SERVING_SECONDS
        elif any(not message.startswith(b"HB:") for message in messages):
            self._serving_until = 0.0

    @property
    def is_serving(self) -> bool:
        """A peer has announced a READ of this engine's blocks that has not ended yet."""
        return time.perf_counter() < self._serving_until

    def _hold_back(self, message: bytes) -> bool:
        if message.startswith(b"HB:"):
            return False
        request_id = message.decode("utf-8", "replace").rsplit(":", 1)[0]
        self._reads.append(request_id)
        if self._is_kept(request_id):
            return True
        self._passed_reads.add(request_id)
        return False

    def take_reads(self) -> list[str]:
        """Requests whose blocks a peer has read, once per read, since the last call."""
        reads, self._reads = self._reads, []
        return reads

    def take_passed_reads(self) -> set[str]:
        """Those of them that vLLM was told of, so that it freed the blocks."""
        passed, self._passed_reads = self._passed_reads, set()
        return passed
