"""Stores batches of events: each event once, in order, together with how far its sender has come."""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import F
from django.utils import timezone

from connector.protocol import Event, LeaseGranted, LeaseSnapshot, TransferRecorded, TurnRecorded
from controlplane.fleet.models import Agent, EventFault, Router
from controlplane.placement import actions as placement
from controlplane.placement.facts import Dated
from controlplane.transfers import actions as transfers

logger = logging.getLogger(__name__)

MAX_AGE_MS = timedelta(days=30) / timedelta(milliseconds=1)
"""An agent's buffer doesn't reach back further; more is a fault of its clock."""

Sender = TypeVar("Sender", Agent, Router)


class RawEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event that is decoded on its own, so that one bad event doesn't cost the batch."""

    sequence: int
    age_ms: float
    event: msgspec.Raw


class RawEventBatch(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="EventBatch"):
    """``protocol.EventBatch`` with its events still encoded."""

    boot: str
    incarnation: str
    events: tuple[RawEvent, ...]


class BadEventError(Exception):
    """An event that can't be stored however often it is sent."""


_decoder = msgspec.json.Decoder(Event)


def ingest_agent_batch(engine_name: str, batch: RawEventBatch, *, connection: str) -> int | None:
    """The sequence up to which this boot's events are stored now; ``None`` when ``connection`` is out of date."""

    def lock() -> Agent | None:
        agents = Agent.objects.select_for_update(of=("self",))
        return agents.filter(engine__name=engine_name, connection=connection, boot=batch.boot).first()

    return _ingest(lock, f"agent:{engine_name}", engine_name, batch)


def ingest_router_batch(name: str, batch: RawEventBatch, *, connection: str) -> int | None:
    """Like ``ingest_agent_batch``, for the turns that a router reports."""

    def lock() -> Router | None:
        routers = Router.objects.select_for_update()
        return routers.filter(name=name, connection=connection, boot=batch.boot).first()

    return _ingest(lock, f"router:{name}", "", batch)


def reconcile_agent_leases(engine_name: str, snapshot: LeaseSnapshot, *, connection: str) -> bool:
    """Makes the engine's placements what its agent says it holds; False when ``connection`` is out of date."""
    received_at = timezone.now()
    with transaction.atomic():
        agents = Agent.objects.select_for_update(of=("self",))
        if not agents.filter(engine__name=engine_name, connection=connection).exists():
            return False
        leases: tuple[LeaseGranted, ...] = snapshot.leases
        placement.reconcile_leases(engine_name, snapshot.incarnation, leases, received_at)
    return True


def _ingest(lock: Callable[[], Sender | None], sender: str, engine_name: str, batch: RawEventBatch) -> int | None:
    received_at = timezone.now()
    try:
        return _store(lock, sender, engine_name, batch, received_at, one_by_one=False)
    except (OperationalError, InterfaceError):
        raise  # the database is away, or this lost a deadlock: the sender still has the batch and sends it again
    except Exception:
        # Rare, so the batch is stored again with a savepoint around each event, to find the one that is to blame.
        logger.exception("event=batch_retried_one_by_one sender=%s", sender)
    return _store(lock, sender, engine_name, batch, received_at, one_by_one=True)


@transaction.atomic
def _store(
    lock: Callable[[], Sender | None],
    sender: str,
    engine_name: str,
    batch: RawEventBatch,
    received_at: datetime,
    *,
    one_by_one: bool,
) -> int | None:
    row = lock()
    if row is None:
        return None
    fresh = sorted((raw for raw in batch.events if raw.sequence > row.committed_sequence), key=lambda raw: raw.sequence)
    if not fresh:
        return row.committed_sequence
    num_missing = fresh[-1].sequence - row.committed_sequence - len(fresh)
    if num_missing:
        logger.warning("event=events_missing sender=%s num_events=%d before=%d", sender, num_missing, fresh[0].sequence)
    dated = _dated(fresh, received_at, sender, allow_turns=not engine_name)
    if one_by_one:
        for sequence, event in dated:
            _apply_alone(sequence, event, sender, engine_name, batch.incarnation)
    else:
        _apply(dated, sender, engine_name, batch.incarnation)
    row.committed_sequence = fresh[-1].sequence
    row.save(update_fields=["committed_sequence"])
    return row.committed_sequence


def _dated(
    fresh: Iterable[RawEvent], received_at: datetime, sender: str, *, allow_turns: bool
) -> list[tuple[int, Dated]]:
    """The events that make sense from this kind of sender, dated by receipt minus age; the others are counted."""
    dated: list[tuple[int, Dated]] = []
    for raw in fresh:
        try:
            event = _decoder.decode(raw.event)
            if isinstance(event, TurnRecorded) != allow_turns:
                raise BadEventError("routers record turns, agents everything else")
            if not 0 <= raw.age_ms <= MAX_AGE_MS:
                raise BadEventError(f"age_ms {raw.age_ms} is out of bounds")
        except (BadEventError, msgspec.MsgspecError) as error:
            _quarantine(sender, raw.sequence, _type_of(raw.event), error)
        else:
            dated.append((raw.sequence, Dated(event, received_at - timedelta(milliseconds=raw.age_ms))))
    return dated


def _apply(dated: list[tuple[int, Dated]], sender: str, engine_name: str, incarnation: str) -> None:
    """Each app gets its events in one call, which locks rows in one order whatever the batch holds."""
    sequences = {id(item.event): sequence for sequence, item in dated}
    moves = [item for _, item in dated if isinstance(item.event, TransferRecorded)]
    others = [item for _, item in dated if not isinstance(item.event, TransferRecorded)]
    refusals = placement.apply_events(others, engine_name=engine_name, incarnation=incarnation)
    refusals += transfers.apply_events(moves, engine_name=engine_name, incarnation=incarnation)
    for refusal in refusals:
        _quarantine(sender, sequences[id(refusal.event)], type(refusal.event).__name__, refusal.error)


def _apply_alone(sequence: int, item: Dated, sender: str, engine_name: str, incarnation: str) -> None:
    try:
        with transaction.atomic():
            _apply([(sequence, item)], sender, engine_name, incarnation)
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        logger.exception("event=event_failed sender=%s sequence=%d", sender, sequence)
        _quarantine(sender, sequence, type(item.event).__name__, error)


def _quarantine(sender: str, sequence: int, event_type: str, error: Exception) -> None:
    """Counts an event that is skipped; its content goes nowhere, for it may hold anything."""
    logger.warning(
        "event=event_quarantined sender=%s sequence=%d type=%s error=%s", sender, sequence, event_type, error
    )
    fault, _ = EventFault.objects.get_or_create(sender=sender, event_type=event_type, error=type(error).__name__)
    EventFault.objects.filter(pk=fault.pk).update(
        num_events=F("num_events") + 1, last_detail=str(error)[:300], last_sequence=sequence, last_at=timezone.now()
    )


class _Tagged(msgspec.Struct):
    type: str = ""


def _type_of(raw: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(raw, type=_Tagged).type[:64]
    except msgspec.MsgspecError:
        return ""
