"""Terms that every message uses: roles, decisions, outcomes, states, and the bases of all structs."""

from enum import StrEnum
from typing import Annotated

import msgspec

PROTOCOL_VERSION = 2

NonNegative = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]


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
