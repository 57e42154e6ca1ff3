"""Hellos, heartbeats and their absence: which engines live, and what that does to their placements."""

import logging
from datetime import timedelta

import msgspec
from django.db import connection as db
from django.db import transaction
from django.utils import timezone

from connector.protocol import (
    MAX_FORMER_INCARNATIONS,
    AgentHello,
    AgentStatus,
    EngineInfo,
    EngineState,
    RouterHello,
    RouterStatus,
)
from controlplane.fleet.groups import announce_fleet_changed
from controlplane.fleet.models import Agent, Engine, Router, State
from controlplane.fleet.selectors import unheard_engines
from controlplane.notify import changed
from controlplane.placement.actions import mark_engine_silent, mark_incarnation_lost

logger = logging.getLogger(__name__)

SILENT_AFTER = timedelta(seconds=6)
"""Three heartbeats."""

STORE_BEAT = """
WITH beat AS (
    UPDATE fleet_agent AS agent
    SET last_seen_at = statement_timestamp(), connected = true,
        num_pending_events = %(num_pending_events)s, num_dropped_events = %(num_dropped_events)s
    FROM fleet_engine AS engine
    WHERE engine.id = agent.engine_id AND engine.name = %(name)s
      AND agent.connection = %(connection)s AND engine.reported_state = %(state)s
    RETURNING agent.engine_id
)
UPDATE fleet_engine AS engine
SET last_seen_at = statement_timestamp(), load = nullif(%(load)s::jsonb, 'null'::jsonb)
FROM beat WHERE engine.id = beat.engine_id
"""


@transaction.atomic
def register_agent(hello: AgentHello, *, connection: str, auto_approve: bool) -> Agent:
    """The agent that speaks for its engine from now on; any earlier connection has lost that right.

    A new boot starts its sequence again. The engine is taken as ready or down from whether it has answered its agent;
    the first status, which follows at once, says it exactly.
    """
    engine, created = Engine.objects.select_for_update().get_or_create(
        name=hello.engine_name, defaults={"approved": auto_approve}
    )
    if created:
        logger.info("event=engine_enrolled engine=%s approved=%s", engine.name, engine.approved)
    before = () if created else _as_routers_see(engine)
    engine.approved = engine.approved or auto_approve
    engine.engine_url, engine.feed_url = hello.engine_url, hello.feed_url
    engine.reported_state = State.READY if hello.engine else State.DOWN
    if hello.engine:
        _note_engine_info(engine, hello.engine)
    engine.last_seen_at = timezone.now()
    _save(engine)
    agent = _take_over(engine, hello, connection)
    if before != _as_routers_see(engine):
        announce_fleet_changed()
    changed("engine", [engine.name])
    changed("agent", [engine.name])
    return agent


def _as_routers_see(engine: Engine) -> tuple[object, ...]:
    fields = (engine.state, engine.role, engine.model, engine.incarnation, engine.engine_url, engine.feed_url)
    return (*fields, engine.draining)


def _take_over(engine: Engine, hello: AgentHello, connection: str) -> Agent:
    agent, _ = Agent.objects.select_for_update().get_or_create(engine=engine)
    agent.engine = engine
    if agent.boot != hello.boot:
        agent.boot, agent.committed_sequence = hello.boot, 0
    agent.connection, agent.connected, agent.version = connection, True, hello.agent_version[:64]
    agent.last_seen_at = engine.last_seen_at
    _save(agent)
    return agent


def _note_engine_info(engine: Engine, info: EngineInfo) -> None:
    """Takes over what the engine says of itself; leases of an earlier incarnation are gone with its memory."""
    if engine.incarnation and engine.incarnation != info.incarnation:
        mark_incarnation_lost(engine.name, engine.incarnation)
        known = dict.fromkeys((engine.incarnation, *engine.former_incarnations))
        known.pop(info.incarnation, None)
        engine.former_incarnations = list(known)[:MAX_FORMER_INCARNATIONS]
    for field in EngineInfo.__struct_fields__:
        if field != "name":
            value = getattr(info, field)
            setattr(engine, field, list(value) if isinstance(value, tuple) else value)


def record_status(
    engine_name: str, status: AgentStatus, *, connection: str, previous: AgentStatus | None = None
) -> bool:
    """Stores a heartbeat. False when ``connection`` must hello again: another one speaks for the engine, or the engine
    had been given up as silent, so that its leases are to be told anew.

    ``previous`` is the last heartbeat of this connection: what says nothing new but gauges costs one statement.
    """
    if previous is not None and _is_beat(previous, status):
        stored = _store_beat(engine_name, status, connection)
    else:
        stored = _store_status(engine_name, status, connection)
    if stored:
        changed("agent", [engine_name])
        if previous is None or previous.load != status.load:
            changed("engine", [engine_name])
    return stored


def _is_beat(previous: AgentStatus, status: AgentStatus) -> bool:
    is_same = (previous.state, previous.incarnation) == (status.state, status.incarnation)
    return is_same and status.engine is None


def _store_beat(engine_name: str, status: AgentStatus, connection: str) -> bool:
    parameters = {
        "name": engine_name,
        "connection": connection,
        "state": status.state.value,
        "num_pending_events": status.num_pending_events,
        "num_dropped_events": status.num_dropped_events,
        "load": msgspec.json.encode(status.load).decode(),
    }
    with db.cursor() as cursor:
        cursor.execute(STORE_BEAT, parameters)
        return bool(cursor.rowcount)


@transaction.atomic
def _store_status(engine_name: str, status: AgentStatus, connection: str) -> bool:
    engine = Engine.objects.select_for_update().exclude(reported_state=State.SILENT).filter(name=engine_name).first()
    agent = Agent.objects.select_for_update().filter(engine=engine, connection=connection).first()
    if engine is None or agent is None:
        return False
    before = (engine.reported_state, engine.incarnation)
    _apply_status(engine, status)
    engine.last_seen_at = agent.last_seen_at = timezone.now()
    _save(engine)
    agent.connected = True
    agent.num_pending_events, agent.num_dropped_events = status.num_pending_events, status.num_dropped_events
    _save(agent)
    if before != (engine.reported_state, engine.incarnation):
        logger.info(
            "event=engine_state engine=%s state=%s incarnation=%s", engine.name, status.state, status.incarnation
        )
        announce_fleet_changed()
        changed("engine", [engine_name])
    return True


def _apply_status(engine: Engine, status: AgentStatus) -> None:
    went_down = status.state == EngineState.DOWN and engine.reported_state != State.DOWN
    if status.engine:
        _note_engine_info(engine, status.engine)
    if went_down and engine.incarnation:
        mark_incarnation_lost(engine.name, engine.incarnation)
    engine.reported_state = State(status.state.value)
    engine.load = msgspec.to_builtins(status.load) if status.load else None


def mark_silent_agents() -> list[str]:
    """The names of the engines that fell silent since the last call; their placements are ``unknown`` until a snapshot.

    Each engine in its own transaction: a hello that arrives meanwhile wins.
    """
    limit = timezone.now() - SILENT_AFTER
    candidates = list(unheard_engines(limit).values_list("name", flat=True))
    return [name for name in candidates if _mark_silent(name)]


@transaction.atomic
def _mark_silent(name: str) -> bool:
    engine = Engine.objects.select_for_update().get(name=name)
    limit = timezone.now() - SILENT_AFTER
    if engine.reported_state == State.SILENT or (engine.last_seen_at and engine.last_seen_at >= limit):
        return False
    engine.reported_state = State.SILENT
    engine.save(update_fields=["reported_state"])
    Agent.objects.filter(engine=engine).update(connected=False)
    mark_engine_silent(name)
    logger.warning("event=engine_silent engine=%s", name)
    announce_fleet_changed()
    changed("engine", [name])
    changed("agent", [name])
    return True


def disconnect_agent(engine_name: str, *, connection: str) -> None:
    """Notes that this socket closed, unless another one has taken over."""
    if Agent.objects.filter(engine__name=engine_name, connection=connection).update(connected=False):
        changed("agent", [engine_name])


@transaction.atomic
def register_router(hello: RouterHello, *, connection: str) -> Router:
    """The router that this name stands for from now on; a new boot starts its sequence again."""
    router, _ = Router.objects.select_for_update().get_or_create(name=hello.router_name)
    if router.boot != hello.boot:
        router.boot, router.committed_sequence = hello.boot, 0
    router.connection, router.connected, router.version = connection, True, hello.router_version[:64]
    router.last_seen_at = timezone.now()
    _save(router)
    changed("router", [router.name])
    return router


@transaction.atomic
def record_router_status(name: str, status: RouterStatus, *, connection: str) -> bool:
    """Stores a heartbeat; False when another connection speaks for this router."""
    router = Router.objects.select_for_update().filter(name=name, connection=connection).first()
    if router is None:
        return False
    for field in RouterStatus.__struct_fields__:
        setattr(router, field, getattr(status, field))
    router.connected, router.last_seen_at = True, timezone.now()
    _save(router)
    changed("router", [name])
    return True


def mark_silent_routers() -> None:
    limit = timezone.now() - SILENT_AFTER
    for name in Router.objects.filter(connected=True, last_seen_at__lt=limit).values_list("name", flat=True):
        Router.objects.filter(name=name, last_seen_at__lt=limit).update(connected=False)
        changed("router", [name])


def _save(row: Engine | Agent | Router) -> None:
    """Saves what a peer says, or raises ``ValidationError`` when it doesn't fit."""
    row.clean_fields()
    row.save()


def disconnect_router(name: str, *, connection: str) -> None:
    if Router.objects.filter(name=name, connection=connection).update(connected=False):
        changed("router", [name])
