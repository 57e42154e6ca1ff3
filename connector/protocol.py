"""The one wire contract between engine, agent, router and control plane.

Every message is a frozen, tagged msgspec struct. Sockets carry them as follows:

====================== ================================ ==================================
socket                 encoding                         unions
====================== ================================ ==================================
engine link (unix)     u32 big-endian length + msgpack  ``EngineToAgent`` / ``AgentToEngine``
agent ``/ws/agent/``   JSON text frames                 ``AgentToControl`` / ``ControlToAgent``
router ``/ws/router/`` JSON text frames                 ``RouterToControl`` / ``ControlToRouter``
lease feed ``/feed``   msgpack binary frames            ``FeedToRouter`` / ``RouterToFeed``
====================== ================================ ==================================

Version history: 1, first release. One version of skew is supported: a receiver ignores unknown fields and refuses a
hello whose ``protocol`` differs from its own by more than one. Clocks of two processes are never compared: a sender
gives ages and remaining times, a receiver dates an event by receipt minus age.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

PROTOCOL_VERSION = 1

NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """Base of everything that crosses a socket; the tag is the class name."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of values nested inside messages; carries no tag."""


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class Direction(StrEnum):
    PREFILL_TO_DECODE = "P->D"
    DECODE_TO_PREFILL = "D->P"


class Decision(StrEnum):
    """The one reason code of a leg; design.md gives the order in which they are tried."""

    PULLED = "pulled"
    TRIMMED_PREFIX_DIVERGED = "trimmed_prefix_diverged"
    LOCAL_PREFIX_HIT = "local_prefix_hit"
    DECODE_LOCAL = "decode_local"
    BELOW_THRESHOLD = "recomputed_below_threshold"
    NO_PLACEMENT = "recomputed_no_placement"
    DISABLED = "recomputed_disabled"
    PREFIX_DIVERGED = "recomputed_prefix_diverged"
    EXPIRED = "recomputed_expired"
    SOURCE_LOST = "recomputed_source_lost"
    TRANSFER_FAILED = "recomputed_transfer_failed"
    TIMEOUT = "recomputed_timeout"
    REJECTED = "recomputed_rejected"
    QUOTA = "recomputed_quota"
    UNSUPPORTED = "recomputed_unsupported"


class TransferOutcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    FENCED = "fenced"


class LeaseState(StrEnum):
    HELD = "held"
    SUPERSEDED = "superseded"
    RELEASED = "released"
    EXPIRED = "expired"
    LOST = "lost"
    UNKNOWN = "unknown"


class LeaseKind(StrEnum):
    """``session``: D keeps a finished turn (a placement). ``handoff``: P keeps a prefill until D has read it."""

    SESSION = "session"
    HANDOFF = "handoff"


class EngineState(StrEnum):
    """What the agent sees of its engine: ``stalled`` answers nothing on the link though the process lives."""

    READY = "ready"
    STALLED = "stalled"
    DOWN = "down"


# ---------------------------------------------------------------- policy


class PolicyValues(Value):
    """The resolved policy of one enforcer. Field names, units and defaults are those of the operator's contract."""

    bidirectional_kv_xfer: bool = True
    kv_recompute_threshold: NonNegative = 64
    decoder_kv_blocks_ttl: NonNegative = 480
    kv_pull_deadline: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    kv_lease_duration: Annotated[int, msgspec.Meta(ge=1, le=86400)] = 30
    pinned_kv_limit: Share = 0.5
    release_on_read: bool = False
    decode_local_max_new_tokens: NonNegative = 0
    trace_sampling: Share = 1.0

    def __post_init__(self) -> None:
        if 0 < self.decoder_kv_blocks_ttl < MIN_TTL_SECONDS:
            raise ValueError(f"decoder_kv_blocks_ttl must be 0 or at least {MIN_TTL_SECONDS} seconds")


MIN_TTL_SECONDS = 10
"""Prefill declines a lease in its last 5 s, so a shorter TTL could never be used."""


class PolicyPatch(Value, omit_defaults=True):
    """What one scope sets; an absent field is inherited from the wider scope."""

    bidirectional_kv_xfer: bool | None = None
    kv_recompute_threshold: NonNegative | None = None
    decoder_kv_blocks_ttl: NonNegative | None = None
    kv_pull_deadline: Annotated[float, msgspec.Meta(gt=0, le=3600)] | None = None
    kv_lease_duration: Annotated[int, msgspec.Meta(ge=1, le=86400)] | None = None
    pinned_kv_limit: Share | None = None
    release_on_read: bool | None = None
    decode_local_max_new_tokens: NonNegative | None = None
    trace_sampling: Share | None = None

    def __post_init__(self) -> None:
        ttl = self.decoder_kv_blocks_ttl
        if ttl is not None and 0 < ttl < MIN_TTL_SECONDS:
            raise ValueError(f"decoder_kv_blocks_ttl must be 0 or at least {MIN_TTL_SECONDS} seconds")

    def apply_to(self, values: PolicyValues) -> PolicyValues:
        changed = {f: v for f in self.__struct_fields__ if (v := getattr(self, f)) is not None}
        return msgspec.structs.replace(values, **changed)


# ---------------------------------------------------------------- facts about an engine


class EngineInfo(Value):
    """What an engine says of itself; ``incarnation`` is vLLM's engine id, new at every start."""

    name: Name
    incarnation: str
    role: Role
    model: str
    block_size: int
    num_blocks: int
    bytes_per_block: int
    kv_dtype: str
    vllm_version: str
    connector_version: str
    unsupported_fields: tuple[str, ...] = ()


class EngineLoad(Value):
    """Gauges sampled once a second; block counts are KV blocks of the whole engine."""

    num_free_blocks: int
    num_blocks: int
    num_leases: int
    num_leased_blocks: int
    num_quarantined_blocks: int
    num_running: int
    num_waiting: int
    num_dropped_events: int


# ---------------------------------------------------------------- events: what happened, in order, per sender


class LeaseGranted(Message):
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


class LeaseExtended(Message):
    lease_id: str
    remaining_seconds: Seconds
    pinned: bool = False


class LeaseEnded(Message):
    """Emitted after the engine has freed the blocks. ``reason`` is free text in snake_case, e.g. ``ttl``, ``command``."""

    lease_id: str
    state: LeaseState
    reason: str
    num_reads: int = 0


class TransferRecorded(Message):
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


class LegDecided(Message):
    """How one leg of a turn got its KV. Tokens: offered by the source, verified as common, found locally, pulled."""

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


class TurnRecorded(Message):
    """A turn as the router saw it; sent when it ends. ``status``: ``ok``, ``error`` or ``cancelled``."""

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


Event = LeaseGranted | LeaseExtended | LeaseEnded | TransferRecorded | LegDecided | TurnRecorded


class NumberedEvent(Value):
    """``sequence`` starts at 1 per (sender boot) and has no gaps; ``age_ms`` is the event's age when sent."""

    sequence: int
    age_ms: float
    event: Event


class EventBatch(Message):
    """``incarnation`` is the engine's at the time of the events; empty for a router's batch."""

    boot: str
    incarnation: str
    events: tuple[NumberedEvent, ...]


class EventsCommitted(Message):
    """Everything up to ``sequence`` of this boot is stored; the sender may forget it."""

    boot: str
    sequence: int


# ---------------------------------------------------------------- engine link


class SetPolicy(Message):
    revision: int
    values: PolicyValues


class PolicyApplied(Message):
    """``values`` are read back from the attributes that the engine really uses."""

    revision: int
    values: PolicyValues
    unsupported_fields: tuple[str, ...] = ()


class ReleaseLease(Message):
    """Idempotent. ``key`` is a lease id or the engine's request id."""

    command_id: str
    key: str
    reason: str = "command"


class ExtendLease(Message):
    """Sets the remaining time of a held lease to ``ttl_seconds`` from now; ``pinned`` stops its clock."""

    command_id: str
    lease_id: str
    ttl_seconds: Seconds
    pinned: bool = False


class CommandDone(Message):
    """``outcome``: ``released``, ``extended``, ``pinned``, ``not_found`` or ``failed``."""

    command_id: str
    outcome: str
    detail: str = ""


class Ping(Message):
    nonce: int


class EngineHello(Message):
    """First frame of the engine on every link connection, followed by a ``LeaseOffer`` for each lease it holds."""

    protocol: int
    engine: EngineInfo
    policy: PolicyApplied
    num_leases: int


class Pong(Message):
    nonce: int
    load: EngineLoad


class LeaseOffer(Message):
    """A grant with what a router needs to offer it. ``offer`` is the engine's signed token, opaque outside engines.

    ``chain`` are the router's own conversation hashes, echoed from the envelope of the turn that made the lease.
    """

    lease: LeaseGranted
    offer: str
    chain: tuple[str, ...] = ()


class LeaseRenewed(Message):
    """An extension with the re-signed offer that carries the new expiry."""

    lease: LeaseExtended
    offer: str


class EngineEvent(Message):
    """Any other event on the link; ``age_ms`` as of sending."""

    age_ms: float
    event: LeaseEnded | TransferRecorded | LegDecided


EngineToAgent = EngineHello | PolicyApplied | Pong | LeaseOffer | LeaseRenewed | EngineEvent | CommandDone
AgentToEngine = SetPolicy | ReleaseLease | ExtendLease | Ping


# ---------------------------------------------------------------- agent <-> control plane


class AgentHello(Message):
    """``engine`` is absent until the engine answered once. URLs are how routers reach engine and feed."""

    protocol: int
    boot: str
    engine_name: Name
    engine_url: str
    feed_url: str
    engine: EngineInfo | None = None
    agent_version: str = ""


class AgentStatus(Message):
    """Heartbeat, every 2 s and on change. ``engine`` is present when the incarnation changed since the last one."""

    state: EngineState
    incarnation: str = ""
    load: EngineLoad | None = None
    engine: EngineInfo | None = None
    num_dropped_events: int = 0
    num_pending_events: int = 0


class LeaseSnapshot(Message):
    """All leases held now, sent after each hello: placements of this engine that are not in it have ended."""

    incarnation: str
    leases: tuple[LeaseGranted, ...]


class PolicyAck(Message):
    """``enforcer`` is the engine's or router's name."""

    enforcer: str
    revision: int
    values: PolicyValues
    unsupported_fields: tuple[str, ...] = ()


class Welcome(Message):
    """Answer to a hello: the control plane's own interval expectations and the last committed sequence of this boot."""

    protocol: int
    committed_sequence: int
    approved: bool
    heartbeat_seconds: float = 2.0


class Refused(Message):
    """The peer closes after this; ``reason`` is for the operator's log."""

    reason: str


class Command(Message):
    """A lease command for the engine; answered by ``CommandDone`` with the same id. Expires after ``deadline_seconds``."""

    deadline_seconds: float
    body: ReleaseLease | ExtendLease


AgentToControl = AgentHello | AgentStatus | LeaseSnapshot | EventBatch | PolicyAck | CommandDone
ControlToAgent = Welcome | Refused | SetPolicy | EventsCommitted | Command


# ---------------------------------------------------------------- router <-> control plane


class RouterHello(Message):
    protocol: int
    boot: str
    router_name: Name
    router_version: str = ""


class RouterStatus(Message):
    num_active_turns: int
    num_leases: int
    num_pending_events: int
    num_dropped_events: int


class FleetEngine(Value):
    """``state``: ``ready``, ``stalled``, ``down``, ``silent`` (agent unheard) or ``pending`` (awaits approval)."""

    name: Name
    role: Role
    model: str
    state: str
    draining: bool
    engine_url: str
    feed_url: str
    incarnation: str


class ApiKeyHash(Value):
    """SHA-256 (hex) of a router API key and the tenant that it speaks for."""

    key_id: str
    sha256: str
    tenant: str


class FleetSnapshot(Message):
    """All that a router needs, whole, at connect and on every change. The last one is kept on the router's disk.

    ``values`` is the fleet scope resolved; the patches are narrower scopes that a router applies per request.
    """

    revision: int
    values: PolicyValues
    model_patches: dict[str, PolicyPatch]
    tenant_patches: dict[str, PolicyPatch]
    session_patches: dict[str, PolicyPatch]
    engines: tuple[FleetEngine, ...]
    api_keys: tuple[ApiKeyHash, ...]


RouterToControl = RouterHello | RouterStatus | EventBatch | PolicyAck
ControlToRouter = Welcome | Refused | FleetSnapshot | EventsCommitted


# ---------------------------------------------------------------- lease feed: agent -> router


class FeedSnapshot(Message):
    """First frame on every connection; deltas then count up from ``sequence`` without gaps."""

    protocol: int
    boot: str
    sequence: int
    engine_name: str
    state: EngineState
    incarnation: str
    load: EngineLoad | None
    leases: tuple[LeaseOffer, ...]


class EngineChanged(Message):
    """A new incarnation or state: leases of another incarnation are gone."""

    state: EngineState
    incarnation: str


class LoadChanged(Message):
    load: EngineLoad


class FeedDelta(Message):
    sequence: int
    change: LeaseOffer | LeaseRenewed | LeaseEnded | EngineChanged | LoadChanged


FeedToRouter = FeedSnapshot | FeedDelta | CommandDone
RouterToFeed = ReleaseLease


# ---------------------------------------------------------------- the signed leg envelope


class LegEnvelope(Value):
    """Signed by the router (see ``connector.signing``), carried on every leg inside ``kv_transfer_params.backhaul``.

    ``expires_unix`` is coarse (minutes) and needs NTP only. ``reason_without_offer`` explains a missing offer.
    ``chain`` are the keyed conversation hashes to be echoed in the lease's ``LeaseOffer``.
    """

    leg: Role
    tenant: str
    session_id: str
    turn_id: str
    expires_unix: float
    traceparent: str = ""
    reason_without_offer: Decision | None = None
    policy: PolicyPatch | None = None
    chain: tuple[str, ...] = ()


class LegReply(Value):
    """What P's connector puts under ``kv_transfer_params.backhaul`` in its response: D's offer and how P's leg went."""

    offer: str
    decision: Decision
    num_pulled_tokens: int
    lease_id: str
