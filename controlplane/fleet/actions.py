"""What operators do to engines, and the sums of a pair."""

from datetime import datetime
from typing import Any

import msgspec
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from connector.protocol import Direction, TransferOutcome
from controlplane.accounts.actions import record_audit
from controlplane.broadcast import broadcast_on_commit
from controlplane.errors import ConflictError
from controlplane.fleet.drains import DEFAULT_DEADLINE_SECONDS, DEFAULT_LINGER_SECONDS, DrainOptions
from controlplane.fleet.groups import agent_group, announce_fleet_changed
from controlplane.fleet.models import Agent, Engine, Pair
from controlplane.notify import changed
from controlplane.placement.actions import mark_incarnation_lost


def approve_engine(name: str, *, actor: str) -> Engine:
    """Lets an enrolled engine take part. Its agent is told to connect again, for all that a hello brings."""
    return _change_engine(name, actor=actor, action="approve", approved=True)


@transaction.atomic
def drain_engine(name: str, *, draining: bool, actor: str, options: DrainOptions | None = None) -> Engine:
    """Makes routers send no turn there, or again; leases that exist may still be read until they are let go.

    Asking again for a drain that is under way changes the options that are given, and starts nothing anew.
    """
    engine = Engine.objects.select_for_update().get(name=name)
    if not draining:
        fields: dict[str, Any] = {"drain_requested_at": None}
    elif engine.draining:
        fields = {}
    else:
        fields = {
            "drain_requested_at": timezone.now(),
            "drain_linger_seconds": DEFAULT_LINGER_SECONDS,
            "drain_deadline_seconds": DEFAULT_DEADLINE_SECONDS,
        }
    given = msgspec.structs.asdict(options) if options and draining else {}
    fields |= {f"drain_{option}": value for option, value in given.items() if value is not None}
    if any(getattr(engine, field) != value for field, value in fields.items()):
        for field, value in fields.items():
            setattr(engine, field, value)
        engine.save(update_fields=list(fields))
        changed("engine", [name])
        if draining and engine.draining:
            record_audit(actor=actor, action="drain", object_kind="engine", object_id=name, after=given)
    return _change_engine(name, actor=actor, action="drain" if draining else "undrain", draining=draining)


@transaction.atomic
def forget_engine(name: str, *, actor: str) -> None:
    """Takes an engine that was shut down off the lists; what it did stays in the record, its placements are lost.

    Raises ``ConflictError`` while its agent is connected: it would come back with the next hello.
    """
    engine = Engine.objects.select_for_update().get(name=name)
    if Agent.objects.filter(engine=engine, connected=True).exists():
        raise ConflictError(f"The agent of engine {name} is connected; stop it first.")
    mark_incarnation_lost(name, engine.incarnation)
    engine.delete()
    record_audit(actor=actor, action="forget", object_kind="engine", object_id=name)
    announce_fleet_changed()
    changed("engine", [name])
    changed("agent", [name])


@transaction.atomic
def _change_engine(name: str, *, actor: str, action: str, **fields: Any) -> Engine:
    """Sets ``fields`` and says so once; repeating it changes nothing. Raises ``Engine.DoesNotExist``."""
    engine = Engine.objects.select_for_update().get(name=name)
    before = {field: getattr(engine, field) for field in fields}
    if before == fields:
        return engine
    for field, value in fields.items():
        setattr(engine, field, value)
    engine.save(update_fields=list(fields))
    record_audit(actor=actor, action=action, object_kind="engine", object_id=name, before=before, after=fields)
    if "approved" in fields:
        broadcast_on_commit(agent_group(engine.pk), {"type": "reconnect", "reason": "approved"})
    announce_fleet_changed()
    changed("engine", [name])
    return engine


def touch_pair(
    *,
    source: str,
    target: str,
    direction: Direction,
    outcome: TransferOutcome,
    num_bytes: int,
    duration_ms: float,
    at: datetime,
) -> None:
    """Adds one transfer to its pair, in the caller's transaction; the row stays locked until that ends."""
    is_complete = outcome == TransferOutcome.COMPLETED
    pair, _ = Pair.objects.get_or_create(source=source, target=target, direction=direction)
    Pair.objects.filter(pk=pair.pk).update(
        num_transfers=F("num_transfers") + 1,
        num_not_completed=F("num_not_completed") + int(not is_complete),
        num_fenced=F("num_fenced") + int(outcome == TransferOutcome.FENCED),
        num_bytes=F("num_bytes") + (num_bytes if is_complete else 0),
        duration_ms=F("duration_ms") + (duration_ms if is_complete else 0.0),
        last_outcome=outcome,
        last_transfer_at=at,
    )
    changed("pair", [pair.pk])
