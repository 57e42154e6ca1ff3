"""Reads of sessions, turns and placements."""

from collections.abc import Collection

from django.db.models import Exists, F, OuterRef, Prefetch, QuerySet

from connector.protocol import LeaseState, Role
from controlplane.fleet.models import Engine
from controlplane.placement.models import Placement, Session, Turn


def placements() -> QuerySet[Placement]:
    """Leases whose grant is known."""
    return Placement.objects.filter(session__isnull=False)


def held_placements(engine_name: str, *, with_pinned: bool) -> QuerySet[Placement]:
    """What the engine holds, that which runs out first in front; pinned ones last."""
    held = Placement.objects.filter(engine=engine_name, state=LeaseState.HELD)
    if not with_pinned:
        held = held.filter(pinned=False)
    return held.order_by(F("expires_at").asc(nulls_last=True), "pk")


def sessions() -> QuerySet[Session]:
    """Sessions, each with its held placements in ``held_placements``, oldest grant first."""
    held = placements().filter(state=LeaseState.HELD).order_by("granted_at", "id")
    return Session.objects.prefetch_related(Prefetch("placements", queryset=held, to_attr="held_placements"))


def live_sessions(sessions: QuerySet[Session], *, is_live: bool) -> QuerySet[Session]:
    """Those some of whose KV an engine holds now, or the others."""
    held = Exists(Placement.objects.filter(session=OuterRef("pk"), state=LeaseState.HELD))
    return sessions.filter(held if is_live else ~held)


def turns_of_session(session_id: str) -> QuerySet[Turn]:
    return Turn.objects.filter(session=session_id)


def trace_ids_of_session(session_id: str, *, limit: int) -> list[str]:
    """Trace ids of a session's latest turns, newest first."""
    traced = turns_of_session(session_id).exclude(trace_id="").order_by("-started_at", "-id")
    return list(traced.values_list("trace_id", flat=True)[:limit])


def known_placement_ids(lease_ids: Collection[str]) -> set[str]:
    return set(Placement.objects.filter(id__in=lease_ids).values_list("id", flat=True))


def is_decode_engine(engine_name: str) -> bool:
    """True also for an engine that nobody knows yet."""
    return not Engine.objects.filter(name=engine_name, role=Role.PREFILL).exists()
