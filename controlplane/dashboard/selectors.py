"""Reads what a frame shows: the bounded lists of a snapshot, or the rows of an update, in one query per table."""

from collections.abc import Collection
from datetime import datetime

from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from controlplane.dashboard import rows
from controlplane.dashboard.frames import AgentRow, EngineRow, RouterRow, Rows, SessionRow, TransferRow, TurnRow
from controlplane.dashboard.pending import Changes
from controlplane.dashboard.policy_rows import policy_row
from controlplane.fleet import selectors as fleet
from controlplane.placement import selectors as placement
from controlplane.placement.models import OPEN_STATES, Placement, Session, Turn
from controlplane.transfers.models import Transfer

MAX_ENGINES = 200
MAX_SESSIONS = 50
MAX_TRANSFERS = 100
MAX_TURNS = 50
MAX_TURNS_OF_SESSION = 50

Ids = Collection[str] | None
"""``None`` asks for the whole bounded list."""


def snapshot_rows(now: datetime) -> tuple[Rows, list[str]]:
    """Everything that a page shows, and the names of the lists that were cut at their bound."""
    found = Rows(
        engines=engine_rows(None),
        agents=agent_rows(None, now),
        routers=router_rows(None, now),
        sessions=session_rows(None, now),
        transfers=transfer_rows(None, now),
        turns=turn_rows(None, now),
        policy=policy_row(now),
    )
    bounds = {"engines": MAX_ENGINES, "sessions": MAX_SESSIONS, "transfers": MAX_TRANSFERS}
    return found, [name for name, bound in bounds.items() if len(getattr(found, name)) >= bound]


def changed_rows(changes: Changes, opened_sessions: Collection[str], now: datetime) -> Rows:
    """The rows that ``changes`` names, as they are now, and the turns of the sessions that the page opened."""
    found = Rows()
    ids = changes.ids
    if "engine" in ids:
        found.engines = engine_rows(ids["engine"])
    if "agent" in ids:
        found.agents = agent_rows(ids["agent"], now)
    if "router" in ids:
        found.routers = router_rows(ids["router"], now)
    if "session" in ids or "placement" in ids:
        found.sessions = _changed_sessions(changes, now)
    if "transfer" in ids:
        found.transfers = transfer_rows(ids["transfer"], now)
    if "turn" in ids:
        found.turns = turn_rows(ids["turn"], now)
    if opened_sessions:
        found.turns = [*(found.turns or []), *turns_of_sessions(opened_sessions, now)]
    if "policy" in ids or "ack" in ids:
        found.policy = policy_row(now)
    return found


def engine_rows(names: Ids) -> list[EngineRow]:
    found = fleet.engines().order_by("name")
    return [rows.engine_row(engine) for engine in _of(found, "name", names)[:MAX_ENGINES]]


def agent_rows(engine_names: Ids, now: datetime) -> list[AgentRow]:
    found = fleet.agents().order_by("engine__name")
    return [rows.agent_row(agent, now) for agent in _of(found, "engine__name", engine_names)[:MAX_ENGINES]]


def router_rows(names: Ids, now: datetime) -> list[RouterRow]:
    found = fleet.routers().order_by("name")
    return [rows.router_row(router, now) for router in _of(found, "name", names)[:MAX_ENGINES]]


def transfer_rows(ids: Ids, now: datetime) -> list[TransferRow]:
    found = Transfer.objects.order_by("-started_at", "-id")
    return [rows.transfer_row(transfer, now) for transfer in _of(found, "id", ids)[:MAX_TRANSFERS]]


def turn_rows(ids: Ids, now: datetime) -> list[TurnRow]:
    """Without ids: by id, whose UUIDv7 orders turns of all sessions by time."""
    found = Turn.objects.order_by("-id")
    return [rows.turn_row(turn, now) for turn in _of(found, "id", ids)[:MAX_TURNS]]


def turns_of_sessions(session_ids: Collection[str], now: datetime) -> list[TurnRow]:
    """The latest turns of each session."""
    return [
        rows.turn_row(turn, now)
        for session_id in session_ids
        for turn in placement.turns_of_session(session_id).order_by("-started_at", "-id")[:MAX_TURNS_OF_SESSION]
    ]


def session_rows(ids: Ids, now: datetime) -> list[SessionRow]:
    """Last active first, each with its held or latest lease and its last turn."""
    return _session_rows(_of(Session.objects.all(), "id", ids), now)


def _changed_sessions(changes: Changes, now: datetime) -> list[SessionRow]:
    session_ids, placement_ids = (changes.ids.get(kind, frozenset()) for kind in ("session", "placement"))
    if session_ids is None or placement_ids is None:
        return session_rows(None, now)
    holders = Placement.objects.filter(pk__in=placement_ids).values("session")
    return _session_rows(Session.objects.filter(Q(pk__in=session_ids) | Q(pk__in=holders)), now)


def _session_rows(found: QuerySet[Session], now: datetime) -> list[SessionRow]:
    last_turn = Turn.objects.filter(session=OuterRef("pk")).order_by("-started_at", "-id").values("pk")[:1]
    leases = Placement.objects.filter(session=OuterRef("pk")).order_by("-granted_at", "-id").values("pk")
    annotated = found.annotate(
        last_turn_id=Subquery(last_turn),
        open_lease_id=Subquery(leases.filter(state__in=OPEN_STATES)[:1]),
        last_lease_id=Subquery(leases[:1]),
    )
    sessions = list(annotated.order_by("-last_turn_at", "-id")[:MAX_SESSIONS])
    turns = Turn.objects.in_bulk([session.last_turn_id for session in sessions if session.last_turn_id])
    shown_leases = {session.pk: session.open_lease_id or session.last_lease_id for session in sessions}
    placements = Placement.objects.in_bulk([pk for pk in shown_leases.values() if pk])
    return [
        rows.session_row(
            session,
            placement=placements.get(shown_leases[session.pk] or ""),
            last_turn=turns.get(session.last_turn_id) if session.last_turn_id else None,
            now=now,
        )
        for session in sessions
    ]


def _of(found: QuerySet, field: str, ids: Ids) -> QuerySet:  # type: ignore[type-arg]
    return found if ids is None else found.filter(**{f"{field}__in": ids})


def server_now() -> datetime:
    return timezone.now()
