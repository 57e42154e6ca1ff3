"""A delegating NIXL agent: one lock, one clock per pull, a fence after each READ, notices of kept leases held back.

vLLM calls it where it would call NIXL's own agent. To vLLM a pull stays in progress until the fence has answered, so
that the source is notified, and the blocks count as received, only after the proof that they were still held.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from connector.engine import guards
from connector.engine.fence import WORD_BYTES, FenceMemory
from connector.engine.metadata import FenceTarget
from connector.engine.notices import NoticeFate, ReadNotices
from connector.engine.pulls import Pull, PullPhase, PullReason, ReadContext, is_verdict, reason_of
from connector.engine.stray_fences import StrayFence, StrayFences
from connector.protocol import TransferOutcome

logger = logging.getLogger("vllm.backhaul.nixl")

READ_AHEAD_NOTICE = b"HB:backhaul-read"
"""Sent before a READ so that an idle source polls faster while it serves it. It looks like a heartbeat for a
request that doesn't exist, so a stock peer ignores it."""
SERVING_SECONDS = 0.5
"""How long a source polls faster after the notice, unless the read ends before."""
MAX_STASHED_NOTICES = 20_000


class NoTelemetry(msgspec.Struct, frozen=True):
    """Stands for a READ's figures when NIXL has none; names are NIXL's."""

    totalBytes: int = 0  # noqa: N815
    descCount: int = 0  # noqa: N815
    xferDuration: int = 0  # noqa: N815
    postDuration: int = 0  # noqa: N815
    startTime: int = 0  # noqa: N815


class FencedNixlAgent:
    """Everything not named here is passed through under the lock: NIXL's own sync mode is NONE."""

    def __init__(self, agent: Any, fence: FenceMemory, fate_of: Callable[[str], NoticeFate]) -> None:
        self._agent = agent
        self._fence = fence
        self.notices = ReadNotices(fate_of)
        self._lock = threading.RLock()
        self._stashed_notifs: dict[str, list[bytes]] = {}
        self.context: ReadContext | None = None
        self.fence_targets: dict[str, FenceTarget] = {}
        self.pulls: dict[int, Pull] = {}
        self.stray_fences = StrayFences(agent, fence)
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
        """``DONE`` only after a matching fence word; ``ERR`` also for a lease that ended meanwhile. Never waits."""
        with self._lock:
            pull = self.pulls.get(id(handle))
            if pull is None or pull.phase is PullPhase.PREPARED:
                return str(self._agent.check_xfer_state(handle))
            self._advance(pull)
            if pull.phase is not PullPhase.ENDED:
                return "PROC"
            return "DONE" if pull.outcome is TransferOutcome.COMPLETED else "ERR"

    def _give_up(self, pull: Pull) -> None:
        """After a fault of ours the data proves nothing."""
        self.let_fence_go(pull)
        pull.end(TransferOutcome.FAILED, PullReason.HOOK_FAILED)

    @guards.contained(_give_up)
    def _advance(self, pull: Pull) -> None:
        if pull.phase is PullPhase.DATA:
            self._advance_data(pull)
        if pull.phase is PullPhase.FENCE:
            self._advance_fence(pull)

    def _look(self, pull: Pull, handle: Any) -> tuple[str, PullReason]:
        """State of a posted READ. An error that is not NIXL's verdict proves no end: the deadline sees to that pull."""
        try:
            return str(self._agent.check_xfer_state(handle)), PullReason.READ_FAILED
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            has_ended = is_verdict(error)
            level = logging.WARNING if has_ended else logging.DEBUG  # the latter comes again at every step
            logger.log(level, "A look at a READ of %s: %r", pull.context.request_id, error)
            return ("ERR", reason_of(error)) if has_ended else ("PROC", PullReason.READ_FAILED)

    def _advance_data(self, pull: Pull) -> None:
        state, reason = self._look(pull, pull.handle)
        if state == "PROC":
            return
        if state != "DONE":
            pull.end(TransferOutcome.FAILED, reason)
            return
        pull.telemetry = self._telemetry(pull.handle)
        pull.num_bytes, pull.num_descriptors = int(pull.telemetry.totalBytes), int(pull.telemetry.descCount)
        self._post_fence(pull)

    def _telemetry(self, handle: Any) -> Any:
        try:
            return self._agent.get_xfer_telemetry(handle)
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            # The data has arrived all the same.
            guards.count("telemetry")
            logger.info("NIXL has no telemetry of a READ: %s", error)
            return NoTelemetry()

    def get_xfer_telemetry(self, handle: Any) -> Any:
        """Of a pull that was done: as taken then, so that vLLM's own look can't fail a pull that is complete."""
        pull = self.pulls.get(id(handle))
        if pull is not None and pull.telemetry is not None:
            return pull.telemetry
        with self._lock:
            return self._agent.get_xfer_telemetry(handle)

    def release_xfer_handle(self, handle: Any) -> None:
        with self._lock:
            self._agent.release_xfer_handle(handle)
        pull = self.pulls.get(id(handle))
        if pull is not None:
            pull.is_released = True

    # ------------------------------------------------ the fence

    def _post_fence(self, pull: Pull) -> None:
        target = pull.fence
        address = target.address_of_rank.get(pull.context.remote_rank) if target else None
        if target is None or address is None:
            pull.end(TransferOutcome.FENCED, PullReason.NO_FENCE_WORD)
            return
        landing = self._fence.take_landing()
        if landing is None:
            guards.count("no_landing_word")
            pull.end(TransferOutcome.FAILED, PullReason.NO_LANDING_WORD)
            return
        try:
            local = self._agent.get_xfer_descs([(self._fence.word_address(landing), WORD_BYTES, 0)], "DRAM")
            remote = self._agent.get_xfer_descs([(address, WORD_BYTES, 0)], "DRAM")
            pull.fence_handle = self._agent.initialize_xfer("READ", local, remote, pull.context.remote_agent)
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            self._fence.return_landing(landing)
            self._fail_fence(pull, PullReason.FENCE_NOT_POSTED, error)
            return
        pull.landing, pull.expected_word = landing, target.generation
        pull.phase, pull.fence_posted_at = PullPhase.FENCE, time.perf_counter()
        try:
            self._agent.transfer(pull.fence_handle)
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            self.let_fence_go(pull)
            self._fail_fence(pull, PullReason.FENCE_NOT_POSTED, error)

    def _fail_fence(self, pull: Pull, reason: PullReason, error: object) -> None:
        logger.warning("No proof for the pull of %s: %s: %s", pull.context.request_id, reason, error)
        pull.end(TransferOutcome.FAILED, reason)

    def _advance_fence(self, pull: Pull) -> None:
        state, _ = self._look(pull, pull.fence_handle)
        if state == "PROC" or pull.landing is None:
            return
        is_held = state == "DONE" and self._fence.value(pull.landing) == pull.expected_word
        self.let_fence_go(pull)
        if is_held:
            pull.end(TransferOutcome.COMPLETED)
            self.notify_source(pull)
        elif state == "DONE":
            pull.end(TransferOutcome.FENCED, PullReason.LEASE_ENDED)
        else:
            self._fail_fence(pull, PullReason.FENCE_FAILED, state)

    def let_fence_go(self, pull: Pull) -> None:
        """The pull needs it no more. Its landing word is free again once NIXL is done with it."""
        if pull.landing is None:
            return
        with self._lock:
            self.stray_fences.add(StrayFence(pull.fence_handle, pull.landing, pull.context.engine_id))
        pull.landing = pull.fence_handle = None

    def poll_stray_fences(self) -> None:
        with self._lock:
            self.stray_fences.poll()

    def notify_source(self, pull: Pull) -> None:
        """So that it frees its blocks, or counts the read."""
        if not pull.notification:
            return
        try:
            with self._lock:
                self._agent.send_notif(pull.context.remote_agent, notif_msg=pull.notification)
        except Exception as error:  # noqa: BLE001 - NIXL raises untyped errors
            # The data is good; the source frees its blocks when the lease expires.
            logger.warning("Read notice for %s was not sent: %s", pull.context.request_id, error)

    # ------------------------------------------------ notifications

    def get_new_notifs(self, *args: Any, **kwargs: Any) -> dict[str, list[bytes]]:
        """Read notices of kept leases are counted and held back: vLLM would free the blocks."""
        with self._lock:
            fresh = self._fresh_notices(*args, **kwargs)
            merged, self._stashed_notifs = self._stashed_notifs, {}
        for agent, messages in fresh.items():
            self._note_serving(messages)
            merged.setdefault(agent, []).extend(messages)
        return self.notices.sort(merged)

    def _no_notices(self, *_: Any, **__: Any) -> dict[str, list[bytes]]:
        return {}

    @guards.contained(_no_notices)
    def _fresh_notices(self, *args: Any, **kwargs: Any) -> dict[str, list[bytes]]:
        """vLLM would let its worker die of an exception here."""
        fresh: dict[str, list[bytes]] = self._agent.get_new_notifs(*args, **kwargs)
        return fresh

    def progress(self) -> None:
        """Lets NIXL serve peers while the engine is idle. Safe from another thread."""
        with self._lock:
            for agent, messages in self._agent.get_new_notifs().items():
                self._stash(agent, messages)
                self._note_serving(messages)

    def _stash(self, agent: str, messages: list[bytes]) -> None:
        if sum(map(len, self._stashed_notifs.values())) + len(messages) > MAX_STASHED_NOTICES:
            guards.count("too_many_stashed_notices")
            return
        self._stashed_notifs.setdefault(agent, []).extend(messages)

    def _note_serving(self, messages: list[bytes]) -> None:
        if READ_AHEAD_NOTICE in messages:
            self._serving_until = time.perf_counter() + SERVING_SECONDS
        elif any(not message.startswith(b"HB:") for message in messages):
            self._serving_until = 0.0

    @property
    def is_serving(self) -> bool:
        """A peer has announced a READ of this engine's blocks that has not ended yet."""
        return time.perf_counter() < self._serving_until
