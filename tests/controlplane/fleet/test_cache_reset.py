"""An engine's cache reset is reported as the engine answered it, never as done because it was asked.

Field report 25 (vllm-project/vllm#41180).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from rest_framework.test import APIClient

from connector.protocol import CommandDone
from controlplane.accounts.models import AuditEntry
from controlplane.fleet.commands import settle_operation
from controlplane.fleet.models import Agent, Engine, Operation

pytestmark = pytest.mark.django_db(transaction=True)

ANSWER_SECONDS = 10.0


@pytest.fixture(autouse=True)
def engine() -> Engine:
    engine = Engine.objects.create(name="p0", role="prefill", approved=True)
    Agent.objects.create(engine=engine, connected=True)
    return engine


@pytest.fixture
def answer() -> Iterator[Callable[[str, str], None]]:
    """Answers the next operation as the engine's agent would, from another thread."""
    threads: list[threading.Thread] = []
    is_over = threading.Event()

    def settle(outcome: str, detail: str) -> None:
        with closing(connection):
            while not is_over.wait(0.01):
                for operation in Operation.objects.filter(state="waiting"):
                    done = CommandDone(command_id=str(operation.pk), outcome=outcome, detail=detail)
                    settle_operation("p0", done)
                    return

    def start(outcome: str, detail: str) -> None:
        threads.append(threading.Thread(target=settle, args=(outcome, detail)))
        threads[-1].start()

    yield start
    is_over.set()
    for thread in threads:
        thread.join(ANSWER_SECONDS)
        assert not thread.is_alive()


def reset(api: APIClient, name: str = "p0", **body: Any) -> Any:
    return api.post(f"/api/v1/engines/{name}/reset-cache", body)


@pytest.mark.parametrize(
    ("outcome", "detail", "state"),
    [("reset", "3 leases released", "done"), ("failed", "4 KV blocks are still in use", "failed")],
)
def test_answer_is_the_engines_own(
    api: APIClient, answer: Callable[[str, str], None], outcome: str, detail: str, state: str
) -> None:
    answer(outcome, detail)
    response = reset(api, deadline_seconds=20)
    assert response.status_code == 200
    assert response.json().items() >= {"outcome": outcome, "detail": detail, "state": state}.items()
    operation = Operation.objects.get()
    assert (operation.command, operation.engine_name, operation.actor) == ("reset_cache", "p0", "token:test-admin")
    assert operation.body["patience_seconds"] == 15, "the engine gives up first, so that its reason still arrives"
    entry = AuditEntry.objects.get(action="reset_cache")
    assert (entry.actor, entry.object_id) == ("token:test-admin", str(operation.pk))


def test_silence_is_a_202_and_a_late_answer_settles_it(api: APIClient) -> None:
    response = reset(api, deadline_seconds=2)
    assert (response.status_code, response.json()["state"]) == (202, "unanswered")
    operation = Operation.objects.get()
    settle_operation("p0", CommandDone(command_id=str(operation.pk), outcome="reset", detail="0 leases released"))
    assert api.get(f"/api/v1/operations/{operation.pk}").json()["outcome"] == "reset"


def test_repeated_reset_is_sent_once(api: APIClient, answer: Callable[[str, str], None]) -> None:
    answer("reset", "")
    command_id = str(uuid4())
    first, again = (reset(api, command_id=command_id) for _ in range(2))
    assert first.json() == again.json()
    assert Operation.objects.count() == 1


def test_engine_without_an_agent_or_a_name_is_refused(api: APIClient, engine: Engine) -> None:
    Agent.objects.filter(engine=engine).update(connected=False)
    assert reset(api).status_code == 409
    assert reset(api, "nobody").status_code == 404
    assert not Operation.objects.exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"deadline_seconds": 1}, "deadline_seconds"),
        ({"deadline_seconds": 60}, "deadline_seconds"),
        ({"now": True}, "now"),
    ],
)
def test_bad_reset_is_a_400_that_names_the_field(api: APIClient, body: dict[str, Any], field: str) -> None:
    response = reset(api, **body)
    assert response.status_code == 400
    assert field in str(response.json()["errors"])
