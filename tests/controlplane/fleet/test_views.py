"""REST of the fleet."""

from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from connector.protocol import Direction, TransferOutcome
from controlplane.accounts.models import AuditEntry
from controlplane.fleet import liveness
from controlplane.fleet.actions import touch_pair
from controlplane.fleet.models import Agent, Engine, Operation, Router
from controlplane.placement import actions as placement
from controlplane.placement.models import Placement
from tests.controlplane.peers import agent_hello, lease

pytestmark = pytest.mark.django_db

NUM_ROWS = 12
LISTS = ["engines", "agents", "routers", "pairs", "operations"]


@pytest.fixture
def fleet() -> None:
    for number in range(NUM_ROWS):
        state = "stalled" if number == 0 else "ready"
        engine = Engine.objects.create(
            name=f"decode-{number}", role="decode", reported_state=state, approved=number != 1
        )
        Agent.objects.create(engine=engine, connected=True)
        Router.objects.create(name=f"router-{number}")
        move("p", f"d{number}")
        Operation.objects.create(engine_name="decode-0", command="pin", body={}, deadline_seconds=1)


def move(source: str, target: str, outcome: TransferOutcome = TransferOutcome.COMPLETED, **changes: Any) -> None:
    moved = {"direction": Direction.PREFILL_TO_DECODE, "num_bytes": 1000, "duration_ms": 2.0, "at": timezone.now()}
    touch_pair(source=source, target=target, outcome=outcome, **{**moved, **changes})


@pytest.mark.parametrize("name", LISTS)
def test_list_takes_few_queries_whatever_its_length(
    api: APIClient, fleet: None, django_assert_max_num_queries: Any, name: str
) -> None:
    api.get(f"/api/v1/{name}")  # the first request notes that the token was used
    with django_assert_max_num_queries(2):
        rows = api.get(f"/api/v1/{name}").json()["results"]
    assert len(rows) == NUM_ROWS


@pytest.mark.parametrize("name", LISTS)
def test_pages_show_every_row_once(api: APIClient, fleet: None, name: str) -> None:
    address, seen = f"/api/v1/{name}?page_size=5", []
    while address:
        page = api.get(address).json()
        seen += [str(row) for row in page["results"]]
        address = page["next"]
    assert len(seen) == len(set(seen)) == NUM_ROWS


@pytest.mark.parametrize("name", [*LISTS, "engines/decode-0"])
def test_rest_needs_a_token(client: Any, fleet: None, name: str) -> None:
    response = client.get(f"/api/v1/{name}")
    assert (response.status_code, response["Content-Type"]) == (401, "application/problem+json")
    assert response["WWW-Authenticate"] == "Bearer"


def test_engine_row_has_the_contracts_fields(api: APIClient, fleet: None) -> None:
    row = api.get("/api/v1/engines/decode-0").json()
    assert (row["name"], row["role"], row["state"], row["draining"]) == ("decode-0", "decode", "stalled", False)
    assert {"block_size", "num_blocks", "kv_dtype", "load", "unsupported_fields", "incarnation"} <= row.keys()


def test_engines_are_filtered_by_what_is_shown(api: APIClient, fleet: None) -> None:
    def names(query: str) -> list[str]:
        return [row["name"] for row in api.get(f"/api/v1/engines?{query}").json()["results"]]

    assert names("state=stalled") == ["decode-0"]
    assert names("state=pending") == ["decode-1"]
    assert len(names("state=ready")) == NUM_ROWS - 2
    assert names("role=prefill") == []


def test_unknown_filter_value_names_the_field(api: APIClient) -> None:
    response = api.get("/api/v1/engines?state=asleep")
    assert response.status_code == 400
    assert response.json()["errors"][0]["field"] == "state"


@pytest.mark.parametrize(("verb", "field", "value"), [("drain", "draining", True), ("approve", "approved", True)])
def test_operators_change_is_made_once_and_audited(api: APIClient, verb: str, field: str, value: bool) -> None:
    Engine.objects.create(name="decode-0")
    for _ in range(2):
        assert api.post(f"/api/v1/engines/decode-0/{verb}").json()[field] is value
    entry = AuditEntry.objects.get(object_kind="engine")
    assert (entry.actor, entry.action, entry.before, entry.after) == (
        "token:test-admin",
        verb,
        {field: not value},
        {field: value},
    )


def test_undrain_takes_a_drain_back(api: APIClient) -> None:
    Engine.objects.create(name="decode-0", draining=True)
    assert api.post("/api/v1/engines/decode-0/undrain").json()["draining"] is False


@pytest.mark.parametrize(
    ("method", "address", "status"),
    [
        ("get", "/api/v1/engines/nobody", 404),
        ("post", "/api/v1/engines/nobody/drain", 404),
        ("delete", "/api/v1/engines/nobody", 404),
        ("delete", "/api/v1/routers/nobody", 405),
        ("get", "/api/v1/operations/not-a-uuid", 404),
        ("get", "/api/v1/engines?cursor=rubbish", 404),
    ],
)
def test_errors_are_problem_documents(api: APIClient, method: str, address: str, status: int) -> None:
    response = getattr(api, method)(address)
    assert (response.status_code, response["Content-Type"]) == (status, "application/problem+json")
    assert response.json()["status"] == status


def test_engine_that_was_shut_down_is_forgotten_and_its_placements_are_lost(api: APIClient) -> None:
    engine = liveness.register_agent(agent_hello(), connection="socket-1", auto_approve=True).engine
    placement.apply_event(lease(), engine_name=engine.name, incarnation="incarnation-1", occurred_at=timezone.now())
    assert api.delete("/api/v1/engines/decode-0").status_code == 409
    liveness.disconnect_agent(engine.name, connection="socket-1")
    assert api.delete("/api/v1/engines/decode-0").status_code == 204
    assert not Agent.objects.exists()
    assert Placement.objects.get().state == "lost"
    assert AuditEntry.objects.filter(action="forget", object_id="decode-0").count() == 1


def test_pair_sums_what_was_completed(api: APIClient) -> None:
    move("p", "d")
    move("p", "d", num_bytes=3000, duration_ms=6.0)
    move("p", "d", TransferOutcome.TIMEOUT, num_bytes=9999, duration_ms=5000.0)
    (row,) = api.get("/api/v1/pairs").json()["results"]
    assert (row["num_transfers"], row["num_not_completed"], row["num_bytes"]) == (3, 1, 4000)
    assert (row["mean_bytes_per_second"], row["last_outcome"]) == (500_000, "timeout")


def test_address_with_one_more_slash_is_served(api: APIClient, fleet: None) -> None:
    assert api.get("/api/v1/engines/").status_code == 200
    assert api.post("/api/v1/engines/decode-0/drain/").status_code == 200
