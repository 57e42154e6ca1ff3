"""Leases of draining engines that no session came back for are let go, some at a time, by the engine's own word."""

from datetime import timedelta

import pytest
from django.utils import timezone

from connector.protocol import ReleaseLease
from controlplane.errors import ConflictError
from controlplane.fleet.models import Engine, Operation, OperationState
from controlplane.placement import actions, draining
from controlplane.placement.facts import Dated
from controlplane.placement.models import Placement
from tests.controlplane.placement.events import granted

pytestmark = pytest.mark.django_db


class Agent:
    """Answers releases as an engine's agent would; ``outcome`` says how."""

    def __init__(self) -> None:
        self.asked: list[ReleaseLease] = []
        self.outcome = OperationState.DONE
        self.is_connected = True

    def send(self, engine: str, body: ReleaseLease, deadline_seconds: float, *, actor: str) -> Operation:
        assert (engine, actor, body.reason) == ("d0", "drain", "drain")
        if not self.is_connected:
            raise ConflictError("no agent")
        if body.command_id not in {known.command_id for known in self.asked}:
            self.asked.append(body)
        return Operation(pk=body.command_id, state=self.outcome)

    @property
    def keys(self) -> list[str]:
        return [body.key for body in self.asked]


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    made = Agent()
    monkeypatch.setattr(draining, "send_command", made.send)
    monkeypatch.setattr(draining, "RUN_SECONDS", 60.0)  # this machine may be busy
    return made


def drain(*, seconds_ago: float, num_leases: int = 3) -> None:
    at = timezone.now()
    events = [
        Dated(granted(f"lease-{number:03}", remaining_seconds=100.0 + number), at) for number in range(num_leases)
    ]
    actions.apply_events(events, engine_name="d0", incarnation="i1")
    actions.apply_events([Dated(granted("elsewhere"), at)], engine_name="d1", incarnation="i1")
    Engine.objects.create(name="d1", approved=True)
    Engine.objects.create(
        name="d0", approved=True, draining=True, drain_requested_at=at - timedelta(seconds=seconds_ago)
    )


def test_leases_wait_for_their_sessions_first(agent: Agent) -> None:
    drain(seconds_ago=50)
    assert draining.release_lingering_leases() == 0
    assert agent.asked == []


def test_each_run_lets_some_go_and_asks_for_none_twice(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "RELEASES_PER_RUN", 2)
    drain(seconds_ago=61)
    assert draining.release_lingering_leases() == 2
    draining.release_lingering_leases()
    assert agent.keys == ["lease-000", "lease-001"], "what runs out first goes first, and is asked for once"
    Placement.objects.filter(pk__in=agent.keys).update(state="released", ended_at=timezone.now())
    assert draining.release_lingering_leases() == 1
    assert agent.keys == ["lease-000", "lease-001", "lease-002"]


def test_failed_release_is_asked_for_again_a_minute_later(agent: Agent) -> None:
    agent.outcome = OperationState.FAILED
    drain(seconds_ago=61, num_leases=1)
    assert draining.release_lingering_leases() == 0
    Engine.objects.filter(name="d0").update(drain_requested_at=timezone.now() - timedelta(seconds=130))
    draining.release_lingering_leases()
    assert agent.keys == ["lease-000", "lease-000"]


@pytest.mark.parametrize(("seconds_ago", "num_released"), [(599, 2), (601, 3)])
def test_pinned_leases_go_at_the_deadline_only(agent: Agent, seconds_ago: float, num_released: int) -> None:
    drain(seconds_ago=seconds_ago)
    Placement.objects.filter(pk="lease-000").update(pinned=True, expires_at=None)
    assert draining.release_lingering_leases() == num_released
    assert agent.keys == ["lease-001", "lease-002", "lease-000"][:num_released]


@pytest.mark.parametrize("how", ["undrained", "no agent", "unanswered"])
def test_nothing_more_is_asked(agent: Agent, how: str) -> None:
    drain(seconds_ago=61)
    agent.is_connected = how != "no agent"
    if how == "undrained":
        Engine.objects.update(draining=False, drain_requested_at=None)
    elif how == "unanswered":
        agent.outcome = OperationState.UNANSWERED
    assert draining.release_lingering_leases() == 0
    assert len(agent.asked) == (how == "unanswered")
