"""One pull as its worker rank sees it: data READ, then fence READ, then the notification of the source."""

import time
from enum import StrEnum
from typing import Any

import msgspec

from connector.engine.metadata import FenceTarget, RankTransfer
from connector.protocol import TransferOutcome


class PullReason(StrEnum):
    """Why a pull brought nothing that may be used: the ``reason`` of its transfer record, one for each way to fail."""

    EXPIRED_BEFORE_READ = "expired_before_read"
    PEER_INVALID = "peer_invalid"
    HANDSHAKE_FAILED = "handshake_failed"
    HANDSHAKE_DEADLINE = "handshake_deadline"
    PREPARE_FAILED = "prepare_failed"
    POST_FAILED = "post_failed"
    READ_FAILED = "read_failed"
    SOURCE_DISCONNECTED = "source_disconnected"
    READ_DEADLINE = "deadline"
    NO_FENCE_WORD = "no_fence_word"
    NO_LANDING_WORD = "no_landing_word"
    FENCE_NOT_POSTED = "fence_not_posted"
    FENCE_FAILED = "fence_failed"
    FENCE_DEADLINE = "fence_deadline"
    LEASE_ENDED = "lease_ended"
    RELEASE_FAILED = "release_failed"
    HOOK_FAILED = "hook_failed"


class ReadContext(msgspec.Struct, frozen=True):
    """The READ that vLLM is about to post: whose, and from which transfer rank of which engine's NIXL agent."""

    request_id: str
    engine_id: str
    remote_rank: int
    remote_agent: str


class PullPhase(StrEnum):
    PREPARED = "prepared"
    DATA = "data"
    FENCE = "fence"
    ENDED = "ended"


class Pull(msgspec.Struct, kw_only=True):
    """State of one posted READ. ``handle`` is kept alive here: NIXL frees a handle with its last reference."""

    context: ReadContext
    handle: Any
    notification: bytes
    fence: FenceTarget | None
    phase: PullPhase = PullPhase.PREPARED
    posted_at: float = 0.0
    post_ms: float = 0.0
    ended_at: float = 0.0
    is_released: bool = False
    was_found_ended: bool = False
    telemetry: Any = None
    fence_handle: Any = None
    fence_posted_at: float = 0.0
    landing: int | None = None
    expected_word: int = 0
    outcome: TransferOutcome = TransferOutcome.COMPLETED
    reason: str = ""
    num_bytes: int = 0
    num_descriptors: int = 0

    def end(self, outcome: TransferOutcome, reason: str = "") -> None:
        self.phase = PullPhase.ENDED
        self.ended_at = time.perf_counter()
        self.posted_at = self.posted_at or self.ended_at
        self.outcome = outcome
        self.reason = str(reason)

    def age_seconds(self) -> float:
        return time.perf_counter() - self.posted_at

    def record(self) -> RankTransfer:
        """Bytes are counted only when the data may be used."""
        is_complete = self.outcome is TransferOutcome.COMPLETED
        return RankTransfer(
            request_id=self.context.request_id,
            outcome=self.outcome.value,
            reason=self.reason,
            num_bytes=self.num_bytes if is_complete else 0,
            num_descriptors=self.num_descriptors,
            post_ms=self.post_ms,
            duration_ms=max(0.0, (self.ended_at - self.posted_at) * 1e3),
            start_age_ms=self.age_seconds() * 1e3,
        )


def is_verdict(error: Exception) -> bool:
    """Whether it is NIXL's own word that a transfer has failed, and so ended; anything else says nothing of it.

    NIXL raises its status codes as ``nixl…Error``, ``nixlRemoteDisconnectError`` at every call once the peer has died.
    """
    return type(error).__name__.startswith("nixl")


def reason_of(error: Exception) -> PullReason:
    is_peer_gone = "Disconnect" in type(error).__name__
    return PullReason.SOURCE_DISCONNECTED if is_peer_gone else PullReason.READ_FAILED
