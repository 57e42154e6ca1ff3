"""Reads of the fleet."""

from datetime import datetime

from django.db.models import Q, QuerySet

from connector.protocol import FleetEngine, Role
from controlplane.fleet.models import Agent, Engine, Operation, Pair, Router


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


def enforcing_engines(seen_since: datetime) -> QuerySet[Engine]:
    """Approved engines heard since then: one that has gone silent still enforces what it was told last."""
    return Engine.objects.filter(approved=True, last_seen_at__gte=seen_since).order_by("name")


def connected_routers() -> QuerySet[Router]:
    return Router.objects.filter(connected=True).order_by("name")


def unheard_engines(since: datetime) -> QuerySet[Engine]:
    """Engines that are not known to be silent yet, though their agent wasn't heard since then."""
    return Engine.objects.exclude(reported_state="silent").filter(Q(last_seen_at__lt=since) | Q(last_seen_at=None))


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
