"""REST of sessions, turns and placements."""

import uuid
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from connector.protocol import Event, LeaseState, Role
from controlplane.placement import actions
from tests.controlplane.placement.events import SESSION_ID, TURN_ID, after, decided, ended, granted, recorded

pytestmark = pytest.mark.django_db

QUERIES_OF_AUTHENTICATION = 2
"""The token, and once a minute the note that it was used."""


def send(event: Event, seconds: float = 0, *, engine: str = "d0") -> None:
    actions.apply_event(event, engine_name=engine, incarnation="i1", occurred_at=after(seconds))


def make_sessions(number: int) -> None:
    for index in range(number):
        turn_id = str(uuid.UUID(int=index + 1))
        session = {"session_id": f"session-{index}", "turn_id": turn_id}
        send(recorded(**session, tenant=f"tenant-{index % 2}", model=f"model-{index % 3}"), index, engine="")
        send(granted(f"lease-{index}", **session), index)


def get(api: APIClient, path: str, **query: Any) -> Any:
    response = api.get(f"/api/v1/{path}", query)
    assert response.status_code == 200, response.content
    return response.json()


def test_session_shows_what_is_held(api: APIClient) -> None:
    send(recorded(), 1.5, engine="")
    send(granted("ended"), 1)
    send(ended("ended"), 2)
    send(granted("held"), 2)
    (session,) = get(api, "sessions")["results"]
    assert session == get(api, f"sessions/{SESSION_ID}")
    assert (session["id"], session["tenant"], session["model"], session["num_turns"]) == (
        SESSION_ID,
        "default",
        "tiny",
        1,
    )
    assert (session["live"], [row["id"] for row in session["placements"]]) == (True, ["held"])


def test_sessions_come_last_active_first_in_pages(api: APIClient) -> None:
    make_sessions(7)
    page = get(api, "sessions", page_size=3)
    found = [row["id"] for row in page["results"]]
    while page["next"]:
        page = api.get(page["next"]).json()
        found += [row["id"] for row in page["results"]]
    assert found == [f"session-{index}" for index in reversed(range(7))]


def test_pages_hold_each_session_once_even_with_equal_times(api: APIClient) -> None:
    for index in range(5):
        send(decided(session_id=f"session-{index}", turn_id=str(uuid.UUID(int=index + 1))))
    page = get(api, "sessions", page_size=2)
    found = [row["id"] for row in page["results"]]
    while page["next"]:
        page = api.get(page["next"]).json()
        found += [row["id"] for row in page["results"]]
    assert sorted(found) == [f"session-{index}" for index in range(5)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"tenant": "tenant-0"}, ["session-4", "session-2", "session-0"]),
        ({"model": "model-2"}, ["session-2"]),
        ({"live": "true"}, ["session-4", "session-3", "session-2", "session-1"]),
        ({"live": "false"}, ["session-0"]),
        ({"live": "true", "tenant": "tenant-0"}, ["session-4", "session-2"]),
    ],
)
def test_sessions_are_filtered(api: APIClient, query: dict[str, str], expected: list[str]) -> None:
    make_sessions(5)
    send(ended("lease-0"), 9)
    assert [row["id"] for row in get(api, "sessions", **query)["results"]] == expected


def test_turn_shows_the_contracts_fields(api: APIClient) -> None:
    send(recorded(prefill_engine=""), 1.5, engine="")
    send(decided(), 0.2, engine="p0")
    send(decided(Role.DECODE), 0.3)
    (turn,) = get(api, f"sessions/{SESSION_ID}/turns")["results"]
    expected = {
        "id": TURN_ID,
        "session": SESSION_ID,
        "parent_turn": None,
        "index": 1,
        "prompt_tokens": 700,
        "reused_tokens": 608,
        "prefill_decision": "pulled",
        "decode_decision": "pulled",
        "prefill_engine": "p0",
        "decode_engine": "d0",
        "ttft_ms": 180.0,
        "status": "ok",
        "started_at": "2026-12-01T12:00:00Z",
    }
    assert {name: turn[name] for name in expected} == expected


def test_turns_of_an_unknown_session_are_a_404(api: APIClient) -> None:
    response = api.get("/api/v1/sessions/nobody/turns")
    assert (response.status_code, response["Content-Type"]) == (404, "application/problem+json")


def test_placement_shows_the_contracts_fields(api: APIClient) -> None:
    send(granted())
    (placement,) = get(api, "placements")["results"]
    assert placement == get(api, "placements/lease-1")
    expected = {
        "id": "lease-1",
        "session": SESSION_ID,
        "turn": TURN_ID,
        "engine": "d0",
        "tokens": 640,
        "blocks": 20,
        "bytes": 655_360,
        "granted_at": "2026-12-01T12:00:00Z",
        "expires_at": "2026-12-01T12:08:00Z",
        "state": "held",
        "pinned": False,
    }
    assert {name: placement[name] for name in expected} == expected


def test_placements_are_filtered(api: APIClient) -> None:
    make_sessions(3)
    send(granted("elsewhere", tenant="other"), 5, engine="d1")
    send(ended("lease-0", state=LeaseState.EXPIRED), 9)
    queries: list[tuple[dict[str, str], list[str]]] = [
        ({"session": "session-1"}, ["lease-1"]),
        ({"engine": "d1"}, ["elsewhere"]),
        ({"state": "expired"}, ["lease-0"]),
        ({"state": "held"}, ["elsewhere", "lease-2", "lease-1"]),
        ({"tenant": "other"}, ["elsewhere"]),
    ]
    for query, expected in queries:
        assert [row["id"] for row in get(api, "placements", **query)["results"]] == expected


def test_lease_without_its_grant_is_not_shown(api: APIClient) -> None:
    send(ended("never-granted"))
    assert get(api, "placements")["results"] == []
    assert api.get("/api/v1/placements/never-granted").status_code == 404


def test_unknown_state_is_a_400_that_names_the_filter(api: APIClient) -> None:
    response = api.get("/api/v1/placements", {"state": "gone"})
    assert (response.status_code, response.json()["errors"][0]["field"]) == (400, "state")


@pytest.mark.parametrize(("path", "budget"), [("sessions", 2), ("placements", 1), ("sessions/session-0/turns", 2)])
def test_lists_keep_to_their_query_budget(
    api: APIClient, django_assert_num_queries: DjangoAssertNumQueries, path: str, budget: int
) -> None:
    make_sessions(20)
    for index in range(20):
        send(recorded(session_id="session-0", turn_id=str(uuid.UUID(int=100 + index))), index, engine="")
    with django_assert_num_queries(budget + QUERIES_OF_AUTHENTICATION):
        assert len(get(api, path)["results"]) >= 20


@pytest.mark.parametrize("path", ["sessions", "placements", "sessions/x/turns"])
def test_lists_need_a_token(path: str) -> None:
    assert APIClient().get(f"/api/v1/{path}").status_code == 401
