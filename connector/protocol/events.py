"""What happened, in order, per sender."""

from connector.protocol.terms import (
    Decision,
    Direction,
    LeaseKind,
    LeaseState,
    Message,
    NonNegative,
    Role,
    Seconds,
    TransferOutcome,
    Value,
)


class LeaseGranted(Message, frozen=True):
    lease_id: str
    kind: LeaseKind
    session_id: str
    turn_id: str
    tenant: str
    num_tokens: int
    num_blocks: int
    num_bytes: int
    remaining_seconds: Seconds
    pinned: bool = False


class LeaseExtended(Message, frozen=True):
    lease_id: str
    remaining_seconds: Seconds
    pinned: bool = False


class LeaseEnded(Message, frozen=True):
    """Emitted after the engine has freed the blocks. ``reason`` is free text in snake_case: ``ttl``, ``command`` …"""

    lease_id: str
    state: LeaseState
    reason: str
    num_reads: int = 0


class TransferRecorded(Message, frozen=True):
    """One NIXL movement, reported by the engine that read. Times in ms; ``start_age_ms`` as of sending."""

    transfer_id: str
    direction: Direction
    source_engine: str
    target_engine: str
    session_id: str
    turn_id: str
    lease_id: str
    num_tokens: int
    num_blocks: int
    num_bytes: int
    post_ms: float
    duration_ms: float
    start_age_ms: float
    outcome: TransferOutcome
    reason: str = ""
    num_ranks: int = 1
    traceparent: str = ""
    trace_id: str = ""
    span_id: str = ""


class LegDecided(Message, frozen=True):
    """How one leg of a turn got its KV. Tokens: offered by the source, verified as common, found locally, pulled.

    ``diverged_at_token``: first token of the block in which prompt and offer differ; absent if one extends the other.
    """

    turn_id: str
    session_id: str
    leg: Role
    decision: Decision
    num_prompt_tokens: int
    num_offered_tokens: int = 0
    num_verified_tokens: int = 0
    num_local_tokens: int = 0
    num_pulled_tokens: int = 0
    traceparent: str = ""
    diverged_at_token: NonNegative | None = None


class TurnRecorded(Message, frozen=True):
    """A turn as the router saw it; sent when it ends. ``status``: ``ok``, ``error`` or ``cancelled``.

    ``diverged_role``: role of the first message that differs from the turn whose KV was offered, ``tools``, or
    ``template`` where token ids differ though no message does; ``diverged_at_message``: its index, if it is a message.
    """

    turn_id: str
    session_id: str
    parent_turn_id: str
    tenant: str
    index: int
    model: str
    prefill_engine: str
    decode_engine: str
    status: str
    http_status: int
    stream: bool
    started_age_ms: float
    prefill_ms: float
    ttft_ms: float
    duration_ms: float
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    trace_id: str = ""
    diverged_at_message: NonNegative | None = None
    diverged_role: str = ""


Event = LeaseGranted | LeaseExtended | LeaseEnded | TransferRecorded | LegDecided | TurnRecorded


class NumberedEvent(Value, frozen=True):
    """``sequence`` starts at 1 per (sender boot) and has no gaps; ``age_ms`` is the event's age when sent."""

    sequence: int
    age_ms: float
    event: Event


class EventBatch(Message, frozen=True):
    """``incarnation`` is the engine's at the time of the events; empty for a router's batch."""

    boot: str
    incarnation: str
    events: tuple[NumberedEvent, ...]


class EventsCommitted(Message, frozen=True):
    """Everything up to ``sequence`` of this boot is stored; the sender may forget it."""

    boot: str
    sequence: int
