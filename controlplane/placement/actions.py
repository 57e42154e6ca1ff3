"""Every change of sessions, turns and placements: idempotent, and the same rows whatever the order of events."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec
from django.db import connection, transaction
from django.utils import timezone

from connector.protocol import Event, LeaseGranted, LeaseKind, Role
from controlplane import notify
from controlplane.placement import selectors, statements
from controlplane.placement.bounds import RefusedEventError
from controlplane.placement.facts import Dated, Facts, Refusal, facts_of
from controlplane.placement.models import LeaseListing, Placement

logger = logging.getLogger(__name__)

LISTING_MARGIN = timedelta(seconds=10)
"""How much older than an engine's list a grant must be to have been on it: covers its way here and our queue."""

EXPIRY_GRACE = timedelta(seconds=2)
GRANT_WAIT = timedelta(hours=1)


def apply_event(event: Event, *, engine_name: str, incarnation: str, occurred_at: datetime) -> None:
    """``apply_events`` for one event; raises ``RefusedEventError`` for one that can't be stored.

    In one transaction with others call ``apply_events``: it locks in one order, while calls one by one can deadlock
    with another sender's.
    """
    for refusal in apply_events([Dated(event, occurred_at)], engine_name=engine_name, incarnation=incarnation):
        raise refusal.error


@transaction.atomic
def apply_events(events: Iterable[Dated], *, engine_name: str, incarnation: str) -> list[Refusal]:
    """Stores what a sender's batch says, all but the returned events; ``engine_name`` is empty for a router's.

    About ten statements whatever the size. Rows are locked sessions first, then turns, then placements (and an engine's
    listing last), each in key order: batches of several senders never deadlock if a transaction calls this once.
    """
    facts, refusals = facts_of(events, engine_name)
    _store_turns(facts)
    _store_leases(facts, engine_name, incarnation)
    return refusals


@transaction.atomic
def reconcile_leases(engine_name: str, incarnation: str, leases: Iterable[LeaseGranted], received_at: datetime) -> None:
    """Makes the open placements of an engine exactly the session leases that it lists.

    An unlisted one is ``expired`` past its time, otherwise ``lost``, until the engine's own event says better; those of
    another incarnation are ``lost``. A listed one that was only thought ended is held again.
    """
    facts = Facts(engine_name)
    for lease in leases:
        if lease.kind is LeaseKind.SESSION:
            try:
                facts.add_grant(lease, received_at, is_snapshot=True)
            except RefusedEventError as error:
                logger.warning("event=lease_refused engine=%s reason=%s", engine_name, error)
    _store_turns(facts)
    listed = list(facts.grants)
    _returning(statements.LOCK_PLACEMENTS, (engine_name, listed))
    _store_leases(facts, engine_name, incarnation)
    changed = _returning(statements.REVIVE_PLACEMENTS, (listed, engine_name, incarnation))
    scope = {"engine": engine_name, "incarnation": incarnation, "listed": listed, "at": received_at}
    changed += _returning(statements.LOSE_OTHER_INCARNATIONS, scope)
    changed += _returning(statements.LOSE_UNLISTED, scope)
    LeaseListing.objects.update_or_create(
        engine=engine_name, defaults={"listed_at": received_at, "lost_incarnation": ""}
    )
    notify.changed("placement", changed)


@transaction.atomic
def mark_engine_silent(engine_name: str) -> None:
    """Held placements become ``unknown``: the engine may hold them still, but nobody says so."""
    notify.changed("placement", _returning(statements.DOUBT_PLACEMENTS, {"engine": engine_name}))


@transaction.atomic
def mark_incarnation_lost(engine_name: str, incarnation: str) -> None:
    """The process that held these leases is gone, and its memory with it."""
    scope = {"engine": engine_name, "incarnation": incarnation, "at": timezone.now()}
    lost = _returning(statements.LOSE_INCARNATION, scope)
    LeaseListing.objects.update_or_create(engine=engine_name, defaults={"lost_incarnation": incarnation})
    notify.changed("placement", lost)


@transaction.atomic
def expire_overdue_placements(*, now: datetime, limit: int) -> int:
    """Ends at most ``limit`` open placements whose time ran out and whose engine hasn't said so; returns how many.

    Rows locked by another transaction are left to it, or to the next call.
    """
    scope = {"overdue_since": now - EXPIRY_GRACE, "limit": limit}
    expired = _returning(statements.EXPIRE_PLACEMENTS, scope)
    notify.changed("placement", expired)
    return len(expired)


def forget_ungranted_leases(*, now: datetime) -> int:
    """Deletes rows of leases whose grant never came, an hour after they were made."""
    deleted, _ = Placement.objects.filter(session=None, granted_at__lt=now - GRANT_WAIT).delete()
    return deleted


def _store_turns(facts: Facts) -> None:
    if not facts.sessions:
        return
    _execute(statements.ENSURE_SESSIONS, list(facts.sessions.values()))
    turns = list(facts.turns.values())
    num_new_turns = Counter(_returning(statements.ENSURE_TURNS, (_json(turns),)))
    _execute(statements.END_TURNS, list(facts.turn_ends.values()))
    _execute(statements.DECIDE_PREFILL, list(facts.legs[Role.PREFILL].values()))
    _execute(statements.DECIDE_DECODE, list(facts.legs[Role.DECODE].values()))
    sessions = [
        {**msgspec.structs.asdict(session), "num_new_turns": num_new_turns[session.id]}
        for session in facts.sessions.values()
    ]
    _execute(statements.UPDATE_SESSIONS, sessions)
    notify.changed("turn", facts.turns)
    notify.changed("session", facts.sessions)


def _store_leases(facts: Facts, engine_name: str, incarnation: str) -> None:
    _forget_handoffs(facts, engine_name)
    if not facts.leases:
        return
    seen = _json(list(facts.leases.values()))
    new = _returning(statements.ENSURE_PLACEMENTS, (engine_name, incarnation, seen))
    changed: list[str] = []
    for statement, rows in (
        (statements.GRANT_PLACEMENTS, facts.grants),
        (statements.EXTEND_PLACEMENTS, facts.extensions),
        (statements.END_PLACEMENTS, facts.ends),
    ):
        if rows:
            changed += _returning(statement, (_json(list(rows.values())), engine_name))
    if new and facts.grants:
        _returning(statements.LOSE_LATE_GRANTS, (new, LISTING_MARGIN))
    notify.changed("placement", changed)


def _forget_handoffs(facts: Facts, engine_name: str) -> None:
    """Leaves out extensions and ends of a prefill engine's leases: these don't say their kind, but aren't placements.

    One of a decode engine whose grant isn't there yet is kept: the grant may follow.
    """
    ungranted = (facts.extensions.keys() | facts.ends.keys()) - facts.grants.keys()
    if not ungranted:
        return
    unknown = ungranted - selectors.known_placement_ids(ungranted)
    if unknown and not selectors.is_decode_engine(engine_name):
        facts.forget_leases(unknown)


def _execute(statement: str, rows: Sequence[Any]) -> None:
    if rows:
        with connection.cursor() as cursor:
            cursor.execute(statement, (_json(rows),))


def _returning(statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[str]:
    """Runs a statement that returns one column of ids."""
    with connection.cursor() as cursor:
        # Django's stubs leave out what psycopg adapts besides: lists and intervals.
        cursor.execute(statement, cast("Sequence[str]", parameters))
        return [row[0] for row in cursor.fetchall()]


def _json(rows: Sequence[Any]) -> str:
    return msgspec.json.encode(rows).decode()
