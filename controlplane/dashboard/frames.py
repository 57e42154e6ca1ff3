"""The frames of ``/ws/dashboard/`` and their rows, as ``frontend/src/api/schema.ts`` validates them.

Times are ages and remaining times in ms as of ``server_now``, so that a page counts down right whatever the clock of
its machine says. ``sequence`` counts up by one per frame of a connection.
"""

from datetime import datetime

import msgspec

PolicyValue = bool | int | float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything listed in a frame."""


class LoadRow(Row, frozen=True):
    num_free_blocks: int = 0
    num_blocks: int = 0
    num_leases: int = 0
    num_leased_blocks: int = 0
    num_quarantined_blocks: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_dropped_events: int = 0
    num_unread_blocks: int = 0


class EngineRow(Row, frozen=True):
    """``role`` is empty until the engine itself has been heard."""

    name: str
    role: str
    model: str
    state: str
    draining: bool
    drained: bool
    incarnation: str
    block_size: int
    num_blocks: int
    bytes_per_block: int
    kv_dtype: str
    vllm_version: str
    connector_version: str
    unsupported_fields: list[str]
    load: LoadRow | None


class AgentRow(Row, frozen=True):
    engine: str
    connected: bool
    version: str
    num_pending_events: int
    num_dropped_events: int
    seen_age_ms: float | None


class RouterRow(Row, frozen=True):
    name: str
    connected: bool
    version: str
    num_active_turns: int
    num_leases: int
    num_pending_events: int
    num_dropped_events: int
    seen_age_ms: float | None


class PlacementRow(Row, frozen=True):
    """``lifetime_ms`` spans grant to expiry; both it and ``remaining_ms`` are null when nothing is counted down."""

    id: str
    engine: str
    tokens: int
    blocks: int
    bytes: int
    state: str
    pinned: bool
    end_reason: str
    granted_age_ms: float
    lifetime_ms: float | None
    remaining_ms: float | None


class TurnRow(Row, frozen=True):
    id: str
    session: str
    index: int | None
    prompt_tokens: int
    output_tokens: int
    reused_tokens: int
    prefill_decision: str
    decode_decision: str
    prefill_engine: str
    decode_engine: str
    status: str
    ttft_ms: float | None
    duration_ms: float | None
    trace_id: str
    age_ms: float
    diverged_at_token: int | None
    diverged_at_message: int | None
    diverged_role: str


class SessionRow(Row, frozen=True):
    """``placement`` is the held lease, or the latest one."""

    id: str
    tenant: str
    model: str
    num_turns: int
    active_age_ms: float
    placement: PlacementRow | None
    last_turn: TurnRow | None


class TransferRow(Row, frozen=True):
    id: str
    direction: str
    source: str
    target: str
    session: str
    turn: str
    tokens: int
    blocks: int
    bytes: int
    post_ms: float
    duration_ms: float
    outcome: str
    reason: str
    trace_id: str
    span_id: str
    age_ms: float


class FieldDiff(Row, frozen=True):
    field: str
    before: PolicyValue | None
    after: PolicyValue | None


class RevisionRow(Row, frozen=True):
    revision: int
    scope: str
    values: dict[str, PolicyValue]
    diff: list[FieldDiff]
    author: str
    reason: str
    age_ms: float


class FieldDrift(Row, frozen=True):
    field: str
    expected: PolicyValue | None
    actual: PolicyValue | None


class AckRow(Row, frozen=True):
    """How one enforcer took the newest revision. ``state``: as ``policy.selectors.AckState``."""

    enforcer: str
    kind: str
    revision: int
    state: str
    latency_ms: float | None
    waiting_ms: float | None
    drift: list[FieldDrift]
    unsupported_fields: list[str]


class PolicyRow(Row, frozen=True):
    """``values`` hold for the fleet scope; ``scopes`` are the patches of every scope that sets something.

    ``acks`` are of the newest revision, unanswered ones first; the counts are of all its enforcers.
    """

    revision: int
    values: dict[str, PolicyValue]
    scopes: dict[str, dict[str, PolicyValue]]
    revisions: list[RevisionRow]
    acks: list[AckRow]
    num_enforcers: int
    num_answered: int


class Rows(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a frame brings: absent lists have not changed."""

    engines: list[EngineRow] | None = None
    agents: list[AgentRow] | None = None
    routers: list[RouterRow] | None = None
    sessions: list[SessionRow] | None = None
    transfers: list[TransferRow] | None = None
    turns: list[TurnRow] | None = None
    policy: PolicyRow | None = None

    def is_empty(self) -> bool:
        return all(getattr(self, field) is None for field in self.__struct_fields__)


def encode_snapshot(
    rows: Rows, *, sequence: int, server_now: datetime, reason: str, num_dropped: int, truncated: list[str]
) -> str:
    """A whole picture: at ``connect``, in place of the updates that a slow page could not take (``resync``), and once a
    minute (``refresh``) in case that an announcement was lost.
    """
    head = {"reason": reason, "num_dropped": num_dropped, "truncated": truncated}
    return _encode("snapshot", sequence, server_now, {**head, **_present(rows)})


def encode_update(rows: Rows, *, sequence: int, server_now: datetime) -> str:
    return _encode("update", sequence, server_now, _present(rows))


def encode_heartbeat(*, sequence: int, server_now: datetime) -> str:
    """Says only that the connection lives."""
    return _encode("heartbeat", sequence, server_now, {})


def _present(rows: Rows) -> dict[str, object]:
    return {field: value for field in rows.__struct_fields__ if (value := getattr(rows, field)) is not None}


def _encode(kind: str, sequence: int, server_now: datetime, body: dict[str, object]) -> str:
    frame = {"type": kind, "sequence": sequence, "server_now": server_now, **body}
    return msgspec.json.encode(frame).decode()
