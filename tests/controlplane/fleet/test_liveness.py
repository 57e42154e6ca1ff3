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
    engine.delete()
    assert not liveness.record_status(engine.name, status(), connection="socket-1")


def test_beat_that_only_moves_gauges_takes_one_statement(engine: Engine, django_assert_num_queries: Any) -> None:
    first, second = status(), status(num_pending_events=9)
    assert liveness.record_status(engine.name, first, connection="socket-1")
    heard(engine, 5)
    with django_assert_num_queries(1):
        assert liveness.record_status(engine.name, second, connection="socket-1", previous=first)
    engine.refresh_from_db()
    assert engine.last_seen_at is not None
    assert timezone.now() - engine.last_seen_at < timedelta(seconds=4)
    assert Agent.objects.get().num_pending_events == 9
    assert engine.load is not None
    assert engine.load["num_free_blocks"] == 900


def test_beat_without_gauges_clears_them(engine: Engine) -> None:
    first, second = status(), status(load=None)
    liveness.record_status(engine.name, first, connection="socket-1")
    liveness.record_status(engine.name, second, connection="socket-1", previous=first)
    engine.refresh_from_db()
    assert engine.load is None


def test_beat_of_a_replaced_socket_or_a_silent_engine_is_not_taken(engine: Engine) -> None:
    liveness.record_status(engine.name, status(), connection="socket-1")
    assert not liveness.record_status(engine.name, status(), connection="socket-0", previous=status())
    Engine.objects.update(reported_state="silent")
    assert not liveness.record_status(engine.name, status(), connection="socket-1", previous=status())


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
