"""Silence: what falls silent, when, and what it means for placements."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.fleet import liveness, tasks
from controlplane.fleet.models import Agent, Engine, Router
from controlplane.placement import actions as placement
from controlplane.placement.models import Placement
from tests.controlplane.peers import agent_hello, lease, status

pytestmark = pytest.mark.django_db


@pytest.fixture
def engine() -> Engine:
    return liveness.register_agent(agent_hello(), connection="socket-1", auto_approve=True).engine


def heard(row: Any, seconds_ago: float) -> None:
    type(row).objects.filter(pk=row.pk).update(last_seen_at=timezone.now() - timedelta(seconds=seconds_ago))


def test_engine_unheard_for_six_seconds_is_silent_and_its_placements_unknown(engine: Engine) -> None:
    placement.apply_event(lease(), engine_name=engine.name, incarnation="incarnation-1", occurred_at=timezone.now())
    heard(engine, 5.5)
    assert liveness.mark_silent_agents() == []
    heard(engine, 6.5)
    tasks.mark_silent()
    engine.refresh_from_db()
    assert (engine.state, Agent.objects.get().connected) == ("silent", False)
    assert Placement.objects.get().state == "unknown"


def test_silence_is_noted_once(engine: Engine) -> None:
    heard(engine, 10)
    assert liveness.mark_silent_agents() == ["decode-0"]
    assert liveness.mark_silent_agents() == []


def test_hello_ends_the_silence(engine: Engine) -> None:
    heard(engine, 10)
    liveness.mark_silent_agents()
    liveness.register_agent(agent_hello(), connection="socket-2", auto_approve=False)
    engine.refresh_from_db()
    assert (engine.state, engine.approved) == ("ready", True)


def test_heartbeat_of_a_replaced_socket_is_not_taken(engine: Engine) -> None:
    assert liveness.record_status(engine.name, status(), connection="socket-1")
    assert not liveness.record_status(engine.name, status(), connection="socket-0")


def test_disconnect_of_a_replaced_socket_changes_nothing(engine: Engine) -> None:
    liveness.disconnect_agent(engine.name, connection="socket-0")
    assert Agent.objects.get().connected
    liveness.disconnect_agent(engine.name, connection="socket-1")
    assert not Agent.objects.get().connected


def test_router_unheard_for_six_seconds_is_disconnected() -> None:
    router = Router.objects.create(name="router-0", connected=True)
    heard(router, 5)
    tasks.mark_silent()
    assert Router.objects.get().connected
    heard(router, 7)
    tasks.mark_silent()
    assert not Router.objects.get().connected
