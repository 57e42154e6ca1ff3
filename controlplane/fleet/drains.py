"""How far a drain has come: from what the engine itself says it holds and runs. Pure."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

import msgspec

from controlplane.fleet.models import Engine, State

DEFAULT_LINGER_SECONDS = 60.0
DEFAULT_DEADLINE_SECONDS = 600.0
MAX_DRAIN_SECONDS = 7 * 24 * 3600

SETTLING = timedelta(seconds=5)
"""Routers hear of a drain, and the engine's figures of it, within so long; before, nothing to see proves nothing."""

Duration = Annotated[float, msgspec.Meta(ge=0, le=MAX_DRAIN_SECONDS)]


class DrainOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What is left out stays as it is when a drain is asked for again."""

    linger_seconds: Duration | None = None
    deadline_seconds: Duration | None = None


class DrainState(StrEnum):
    DRAINING = "draining"
    DRAINED = "drained"


class DrainProgress(msgspec.Struct, kw_only=True, frozen=True):
    """``num_leases``, ``num_legs``: as the engine said last; null while it isn't heard."""

    state: DrainState
    num_leases: int | None
    num_legs: int | None
    requested_at: datetime
    releases_at: datetime
    deadline_at: datetime


def progress_of(engine: Engine) -> DrainProgress | None:
    """Absent unless the engine drains."""
    if not engine.draining or engine.drain_requested_at is None:
        return None
    load = engine.load or {}
    is_down = engine.reported_state == State.DOWN
    is_known = is_down or (bool(load) and engine.reported_state != State.SILENT)
    num_leases = 0 if is_down else int(load.get("num_leases", 0))
    num_legs = 0 if is_down else int(load.get("num_running", 0)) + int(load.get("num_waiting", 0))
    num_blocks = 0 if is_down else int(load.get("num_leased_blocks", 0)) + int(load.get("num_quarantined_blocks", 0))
    is_empty = is_known and not (num_leases or num_legs or num_blocks)
    return DrainProgress(
        state=DrainState.DRAINED if is_empty and _has_settled(engine) else DrainState.DRAINING,
        num_leases=num_leases if is_known else None,
        num_legs=num_legs if is_known else None,
        requested_at=engine.drain_requested_at,
        releases_at=release_time(engine, engine.drain_requested_at),
        deadline_at=deadline(engine, engine.drain_requested_at),
    )


def release_time(engine: Engine, requested_at: datetime) -> datetime:
    """From when on leases are released that no session came back for."""
    return min(
        requested_at + timedelta(seconds=engine.drain_linger_seconds),
        deadline(engine, requested_at),
    )


def deadline(engine: Engine, requested_at: datetime) -> datetime:
    """From when on pinned leases are released as well."""
    return requested_at + timedelta(seconds=engine.drain_deadline_seconds)


def _has_settled(engine: Engine) -> bool:
    if engine.drain_requested_at is None or engine.last_seen_at is None:
        return False
    return engine.last_seen_at >= engine.drain_requested_at + SETTLING
