"""Commands reach the engine of a placement and bring back what happened there."""

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from rest_framework.test import APIClient

from connector.protocol import CommandDone
from controlplane.fleet.commands import settle_operation
from controlplane.fleet.models import Agent, Engine, Operation
from controlplane.placement import actions
from tests.controlplane.placement.events import NOON, after, ended, granted

pytestmark = pytest.mark.django_db(transaction=True)

ANSWER_SECONDS = 10.0


@pytest.fixture(autouse=True)
def engine() -> Engine:
    engine = Engine.objects.create(name="d0", role="decode", approved=True)
    Agent.objects.create(engine=engine, connected=True)
    actions.apply_event(granted(), engine_name="d0", incarnation="i1", occurred_at=NOON)
    return engine


@pytest.fixture
def answer() -> Callable[[str], threading.Thread]:
    """Answers the next operation as the engine's agent would, from another thread."""
    threads: list[threading.Thread] = []
    is_over = threading.Event()

    def settle(outcome: str) -> None:
        with closing(connection):
            while not is_over.wait(0.01):
                for operation in Operation.objects.filter(state="waiting"):
                    settle_operation("d0", CommandDone(command_id=str(operation.pk), outcome=outcome))
                    return

    def start(outcome: str) -> threading.Thread:
        thread = threading.Thread(target=settle, args=(outcome,))
        threads.append(thread)
        thread.start()
        return thread

    yield start
    is_over.set()
    for thread in threads:
        thread.join(ANSWER_SECONDS)
        assert not thread.is_alive()


def post(api: APIClient, command: str, **body: Any) -> Any:
    return api.post(f"/api/v1/placements/lease-1/{command}", body)


@pytest.mark.parametrize(
    ("command", "body", "outcome", "sent"),
    [
        ("release", {}, "released", {"type": "ReleaseLease", "key": "lease-1", "reason": "command"}),
        ("extend", {"ttl_seconds": 900}, "extended", {"type": "ExtendLease", "ttl_seconds": 900.0, "pinned": False}),
        ("pin", {}, "pinned", {"type": "ExtendLease", "lease_id": "lease-1", "pinned": True}),
        ("release", {}, "not_found", {"type": "ReleaseLease"}),
    ],
)
def test_command_answers_what_happened_at_the_engine(
    api: APIClient,
    answer: Callable[[str], threading.Thread],
    command: str,
    body: dict[str, Any],
    outcome: str,
    sent: dict[str, Any],
) -> None:
    answer(outcome)
    response = post(api, command, **body)
    assert (response.status_code, response.json()["outcome"]) == (200, outcome)
    operation = Operation.objects.get()
    assert (operation.engine_name, operation.actor) == ("d0", "token:test-admin")
    assert sent.items() <= operation.body.items()


def test_unanswered_command_is_a_202_with_its_operation(api: APIClient) -> None:
    response = post(api, "release", deadline_seconds=0.1)
    assert (response.status_code, response.json()["state"]) == (202, "unanswered")
    assert response.json()["id"] == str(Operation.objects.get().pk)


def test_repeated_command_is_sent_once(api: APIClient, answer: Callable[[str], threading.Thread]) -> None:
    answer("released")
    command_id = str(uuid4())
    first = post(api, "release", command_id=command_id)
    actions.apply_event(ended(), engine_name="d0", incarnation="i1", occurred_at=after(1))
    again = post(api, "release", command_id=command_id)
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()
    assert Operation.objects.count() == 1


def test_ended_placement_takes_no_command(api: APIClient) -> None:
    actions.apply_event(ended(), engine_name="d0", incarnation="i1", occurred_at=after(1))
    for command, body in (("release", {}), ("extend", {"ttl_seconds": 900}), ("pin", {})):
        response = post(api, command, **body)
        assert response.status_code == 409
        assert "released" in response.json()["detail"]
    assert not Operation.objects.exists()


def test_command_without_a_connected_agent_is_a_409(api: APIClient, engine: Engine) -> None:
    Agent.objects.filter(engine=engine).update(connected=False)
    assert post(api, "pin").status_code == 409


def test_unknown_placement_is_a_404(api: APIClient) -> None:
    assert api.post("/api/v1/placements/nothing/pin", {}).status_code == 404


@pytest.mark.parametrize(
    ("command", "body", "field"),
    [
        ("extend", {}, "ttl_seconds"),
        ("extend", {"ttl_seconds": 5}, "ttl_seconds"),
        ("extend", {"ttl_seconds": 10**9}, "ttl_seconds"),
        ("extend", {"ttl_seconds": "soon"}, "ttl_seconds"),
        ("release", {"deadline_seconds": 3600}, "deadline_seconds"),
        ("release", {"command_id": "x"}, "command_id"),
        ("pin", {"forever": True}, "forever"),
    ],
)
def test_bad_command_is_a_400_that_names_the_field(
    api: APIClient, command: str, body: dict[str, Any], field: str
) -> None:
    response = post(api, command, **body)
    assert response.status_code == 400
    assert field in str(response.json()["errors"])


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"'])
def test_malformed_body_is_a_400(api: APIClient, body: bytes) -> None:
    response = api.post("/api/v1/placements/lease-1/extend", body, content_type="application/json")
    assert (response.status_code, response["Content-Type"]) == (400, "application/problem+json")
