"""Rows between events and Postgres: one struct per statement, with that statement's column names."""

import uuid
from datetime import datetime

import msgspec


class SessionSeen(msgspec.Struct, kw_only=True):
    """When a session showed. Its model comes with a recorded turn, its tenant also with a lease."""

    id: str
    first_at: datetime
    last_at: datetime
    granted_tenant: str = ""
    routed_tenant: str = ""
    model: str = ""
    model_at: datetime | None = None


class TurnSeen(msgspec.Struct, kw_only=True):
    id: uuid.UUID
    session_id: str
    first_at: datetime


class TurnEnd(msgspec.Struct, kw_only=True, frozen=True):
    """The router's word on a turn that ended at ``at``."""

    id: uuid.UUID
    at: datetime
    session_id: str
    started_at: datetime
    parent_turn_id: uuid.UUID | None
    index: int
    model: str
    tenant: str
    prefill_engine: str
    decode_engine: str
    status: str
    http_status: int | None
    stream: bool
    prefill_ms: float | None
    ttft_ms: float | None
    duration_ms: float
    prompt_tokens: int
    output_tokens: int
    trace_id: str
    diverged_at_message: int | None
    diverged_role: str


class Leg(msgspec.Struct, kw_only=True, frozen=True):
    """An engine's word on its leg of a turn."""

    id: uuid.UUID
    at: datetime
    engine: str
    decision: str
    prompt_tokens: int
    offered_tokens: int
    verified_tokens: int
    local_tokens: int
    reused_tokens: int
    trace_id: str
    diverged_at_token: int | None


class LeaseSeen(msgspec.Struct, kw_only=True):
    """Enough to make the row of a lease whose grant may still be missing."""

    id: str
    first_at: datetime


class Grant(msgspec.Struct, kw_only=True, frozen=True):
    """``expires_at`` is null while pinned, as known at ``at``."""

    id: str
    at: datetime
    session_id: str
    turn_id: uuid.UUID
    tenant: str
    tokens: int
    blocks: int
    bytes: int
    expires_at: datetime | None
    pinned: bool


class Extension(msgspec.Struct, kw_only=True, frozen=True):
    id: str
    at: datetime
    expires_at: datetime | None
    pinned: bool


class End(msgspec.Struct, kw_only=True, frozen=True):
    id: str
    at: datetime
    state: str
    reason: str
    num_reads: int
