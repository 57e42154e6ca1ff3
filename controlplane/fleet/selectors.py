"""Reads of the fleet."""

from datetime import datetime

from django.db.models import Case, Count, F, Q, QuerySet, Sum, Value, When

from connector.protocol import FleetEngine, Role
from controlplane.fleet.models import Agent, Engine, EventFault, Operation, OperationState, Pair, Router, State


def engines() -> QuerySet[Engine]:
    return Engine.objects.all()


def agents() -> QuerySet[Agent]:
    return Agent.objects.select_related("engine")


def routers() -> QuerySet[Router]:
    return Router.objects.all()


def pairs() -> QuerySet[Pair]:
    return Pair.objects.all()


def operations() -> QuerySet[Operation]:
    return Operation.objects.all()


def open_operations() -> QuerySet[Operation]:
    return Operation.objects.filter(state__in=(OperationState.WAITING, OperationState.UNANSWERED))


def event_faults() -> QuerySet[EventFault]:
    return EventFault.objects.all()


def readable_engines() -> QuerySet[Engine]:
    """Whose KV other engines may read: the approved ones, also while they drain or are silent."""
    return Engine.objects.filter(approved=True).order_by("name")


def draining_engines() -> QuerySet[Engine]:
    return Engine.objects.filter(draining=True).exclude(drain_requested_at=None).order_by("name")


def engine_counts() -> list[tuple[str, str, int]]:
    """How many engines there are of each role and state; the role is ``unknown`` until an engine has answered."""
    shown = Case(When(approved=False, then=Value(State.PENDING)), default=F("reported_state"))
    rows = Engine.objects.annotate(shown=shown).values_list("role", "shown").annotate(num=Count("pk")).order_by()
    return [(role or "unknown", state, num) for role, state, num in rows]


def unread_figures() -> tuple[int, float]:
    """Over all engines: KV blocks in session leases that no pull has read so far, and the block-seconds of those that
    ended unread since each engine's start."""
    loads = [load for load in Engine.objects.exclude(load=None).values_list("load", flat=True) if load]
    blocks = sum(int(load.get("num_unread_blocks", 0)) for load in loads)
    return blocks, sum(float(load.get("unread_block_seconds", 0.0)) for load in loads)


def fenced_counts() -> list[tuple[str, int]]:
    """Reads after a lease's end, by direction."""
    rows = Pair.objects.order_by("direction").values_list("direction").annotate(num=Sum("num_fenced"))
    return [(direction, num) for direction, num in rows]


def enforcing_engines(seen_since: datetime) -> QuerySet[Engine]:
    """Approved engines heard since then: one that has gone silent still enforces what it was told last."""
    return Engine.objects.filter(approved=True, last_seen_at__gte=seen_since).order_by("name")


def connected_routers() -> QuerySet[Router]:
    return Router.objects.filter(connected=True).order_by("name")


def unheard_engines(since: datetime) -> QuerySet[Engine]:
    """Engines that are not known to be silent yet, though their agent wasn't heard since then."""
    return Engine.objects.exclude(reported_state=State.SILENT).filter(Q(last_seen_at__lt=since) | Q(last_seen_at=None))


def fleet_engines() -> tuple[FleetEngine, ...]:
    """Every engine that has told its role, as routers are told of it."""
    return tuple(
        FleetEngine(
            name=engine.name,
            role=Role(engine.role),
            model=engine.model,
            state=engine.state,
            draining=engine.draining,
            engine_url=engine.engine_url,
            feed_url=engine.feed_url,
            incarnation=engine.incarnation,
        )
        for engine in Engine.objects.exclude(role="").order_by("name")
    )
