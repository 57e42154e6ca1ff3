"""One pull as its worker rank sees it: data READ, then fence READ, then the notification of the source."""

import time
from enum import StrEnum
from typing import Any

import msgspec

from connector.engine.metadata import FenceTarget, RankTransfer
from connector.protocol import TransferOutcome


class ReadContext(msgspec.Struct, frozen=True):
    """The READ that vLLM is about to post: whose, and from which transfer rank of which NIXL agent."""

    request_id: str
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
        self.outcome = outcome
        self.reason = reason

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
            start_age_ms=(time.perf_counter() - self.posted_at) * 1e3,
        )
