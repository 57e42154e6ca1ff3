"""What our scheduler and worker halves tell each other, riding on vLLM's own connector metadata."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata, NixlHandshakePayload


@dataclass
class FencedHandshakePayload(NixlHandshakePayload):
    """What a worker hands the scheduler at start, with where its fence words lie; peers ignore the extra field."""

    fence_address: int = 0


@dataclass(frozen=True)
class FenceTarget:
    """Where a reader finds the word of the lease that it reads: address by source rank, and the value it must have."""

    address_of_rank: dict[int, int]
    generation: int


@dataclass
class SchedulerOrders:
    """Scheduler → worker, once per step. Deadlines are remaining seconds, for the worker's own clock.

    ``pull_deadline_seconds`` holds for pulls under way too; ``pull_deadlines`` are those of new pulls with their own.
    """

    pull_deadline_seconds: float
    lease_extension_seconds: int
    fence_words: dict[str, tuple[int, int]] = field(default_factory=dict)
    dropped_words: list[str] = field(default_factory=list)
    fence_targets: dict[str, FenceTarget] = field(default_factory=dict)
    pull_deadlines: dict[str, float] = field(default_factory=dict)
    kept_requests: list[str] = field(default_factory=list)
    unkept_requests: list[str] = field(default_factory=list)
    deadlines: dict[str, float] = field(default_factory=dict)
    releases: list[str] = field(default_factory=list)


class BackhaulMetadata(NixlConnectorMetadata):
    """vLLM asserts on its own class, so ours is a subclass with one more field: what is new to the workers, if any."""

    orders: SchedulerOrders | None = None


@dataclass(frozen=True)
class RankTransfer:
    """How one rank's pull of one request went. Times in ms; ``start_age_ms`` as of reporting."""

    request_id: str
    outcome: str
    reason: str
    num_bytes: int
    num_descriptors: int
    post_ms: float
    duration_ms: float
    start_age_ms: float


@dataclass
class WorkerReport(KVConnectorWorkerMetadata):
    """Worker → scheduler, only when there is something to say. Reports of ranks are concatenated.

    ``quarantined`` / ``ended``: one entry per rank whose posted READ outlived its deadline, and later has ended.
    ``failed``: one entry per rank whose receive of that request failed; vLLM says so itself from 0.30 on.
    ``contained``: exceptions contained so far, by pid and hook, whenever their number has changed.
    """

    transfers: list[RankTransfer] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    contained: dict[int, dict[str, int]] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "WorkerReport":
        if not isinstance(other, WorkerReport):
            raise TypeError(f"can't aggregate a {type(other).__name__}")
        return WorkerReport(
            transfers=self.transfers + other.transfers,
            quarantined=self.quarantined + other.quarantined,
            ended=self.ended + other.ended,
            expired=self.expired + other.expired,
            reads=self.reads + other.reads,
            failed=self.failed + other.failed,
            contained=self.contained | other.contained,
        )

    def is_empty(self) -> bool:
        lists = (self.transfers, self.quarantined, self.ended, self.expired, self.reads, self.failed, self.contained)
        return not any(lists)
