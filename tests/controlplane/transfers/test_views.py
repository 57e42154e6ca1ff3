"""REST of transfers: filters, exact sums, minutes."""

from typing import Any
from uuid import UUID

import pytest
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from connector.protocol import Direction, TransferOutcome
from controlplane.placement.facts import Dated
from controlplane.transfers import actions
from tests.controlplane.placement.events import SESSION_ID, TRACE_ID, TURN_ID, after
from tests.controlplane.transfers.events import moved

pytestmark = pytest.mark.django_db

QUERIES_OF_AUTHENTICATION = 2
OTHER_TURN = str(UUID(int=9))
THERE = {"direction": Direction.PREFILL_TO_DECODE, "source_engine": "p0", "target_engine": "d0"}


@pytest.fixture
def transfers() -> None:
    back = [
        Dated(moved("back-1", num_bytes=1000, num_tokens=32, num_blocks=1, duration_ms=10.0), after(1)),
        Dated(moved("back-2", num_bytes=2000, session_id="other", turn_id=OTHER_TURN, duration_ms=0.0), after(2)),
        Dated(moved("back-3", num_bytes=4000, outcome=TransferOutcome.FENCED, duration_ms=0.0), after(3)),
    ]
    actions.apply_events(back, engine_name="p0", incarnation="i1")
    there = [Dated(moved("there-1", **THERE, num_bytes=8000, duration_ms=0.0), after(70))]
    actions.apply_events(there, engine_name="d0", incarnation="i2")


def get(api: APIClient, path: str, **query: Any) -> Any:
    response = api.get(f"/api/v1/{path}", query)
    assert response.status_code == 200, response.content
    return response.json()


def test_transfer_shows_the_contracts_fields(api: APIClient, transfers: None) -> None:
    transfer = get(api, "transfers/back-1")
    expected = {
        "id": "back-1",
        "direction": "D->P",
        "source": "d0",
        "target": "p0",
        "session": SESSION_ID,
        "turn": TURN_ID,
        "lease": "lease-1",
        "tokens": 32,
        "blocks": 1,
        "bytes": 1000,
        "post_ms": 0.4,
        "duration_ms": 10.0,
        "outcome": "completed",
        "reason": "",
        "trace_id": TRACE_ID,
        "span_id": "00f067aa0ba902b7",
        "started_at": "2026-12-01T12:00:00.990000Z",
        "ranks": 1,
    }
    assert transfer == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["there-1", "back-3", "back-2", "back-1"]),
        ({"direction": "P->D"}, ["there-1"]),
        ({"source": "d0"}, ["back-3", "back-2", "back-1"]),
        ({"target": "d0"}, ["there-1"]),
        ({"session": "other"}, ["back-2"]),
        ({"turn": OTHER_TURN}, ["back-2"]),
        ({"outcome": "fenced"}, ["back-3"]),
        ({"since": "2026-12-01T12:00:02Z"}, ["there-1", "back-3", "back-2"]),
        ({"until": "2026-12-01T12:00:02Z"}, ["back-1"]),
        ({"since": "2026-12-01T12:00:02+00:00", "outcome": "completed", "direction": "D->P"}, ["back-2"]),
    ],
)
def test_transfers_are_filtered(api: APIClient, transfers: None, query: dict[str, str], expected: list[str]) -> None:
    assert [row["id"] for row in get(api, "transfers", **query)["results"]] == expected


@pytest.mark.parametrize("field", ["direction", "outcome", "turn", "since"])
def test_bad_filter_is_a_400_that_names_it(api: APIClient, field: str) -> None:
    response = api.get("/api/v1/transfers", {field: "nonsense"})
    assert (response.status_code, response.json()["errors"][0]["field"]) == (400, field)


def test_summary_is_the_exact_sum_of_the_rows(api: APIClient, transfers: None) -> None:
    summary = get(api, "transfers/summary")
    assert (summary["count"], summary["bytes"], summary["tokens"], summary["blocks"]) == (4, 15_000, 1856, 58)
    groups = {(group["direction"], group["outcome"]): group for group in summary["groups"]}
    assert {key: (group["count"], group["bytes"]) for key, group in groups.items()} == {
        ("D->P", "completed"): (2, 3000),
        ("D->P", "fenced"): (1, 4000),
        ("P->D", "completed"): (1, 8000),
    }
    completed = groups["D->P", "completed"]
    assert (completed["duration_ms"], completed["duration_ms_max"], completed["post_ms"]) == (10.0, 10.0, 0.8)


def test_summary_obeys_the_filters(api: APIClient, transfers: None) -> None:
    summary = get(api, "transfers/summary", target="p0", outcome="completed", since="2026-12-01T12:00:02Z")
    assert (summary["count"], summary["bytes"]) == (1, 2000)


def test_summary_of_nothing_is_zero(api: APIClient) -> None:
    assert get(api, "transfers/summary") == {"count": 0, "tokens": 0, "blocks": 0, "bytes": 0, "groups": []}


def test_summary_is_exact_beyond_32_bits(api: APIClient) -> None:
    batch = [Dated(moved(f"big-{number}", num_bytes=2**50), after(number)) for number in range(4)]
    actions.apply_events(batch, engine_name="p0", incarnation="i1")
    assert get(api, "transfers/summary")["bytes"] == 2**52


def test_minutes_are_listed_latest_first(api: APIClient, transfers: None) -> None:
    found = get(api, "transfers/minutes")["results"]
    seen = [(row["minute"], row["source"], row["count"], row["failures"], row["bytes"]) for row in found]
    assert seen == [("2026-12-01T12:01:00Z", "p0", 1, 0, 8000), ("2026-12-01T12:00:00Z", "d0", 3, 1, 3000)]
    assert [row["count"] for row in get(api, "transfers/minutes", target="p0")["results"]] == [3]
    assert len(found[0]["buckets"]) == len(found[0]["bucket_bounds_ms"]) + 1


@pytest.mark.parametrize(("path", "budget"), [("transfers", 1), ("transfers/summary", 1), ("transfers/minutes", 1)])
def test_lists_keep_to_their_query_budget(
    api: APIClient,
    transfers: None,
    django_assert_num_queries: DjangoAssertNumQueries,
    path: str,
    budget: int,
) -> None:
    with django_assert_num_queries(budget + QUERIES_OF_AUTHENTICATION):
        get(api, path)


@pytest.mark.parametrize("path", ["transfers", "transfers/summary", "transfers/minutes", "transfers/back-1"])
def test_transfers_need_a_token(path: str) -> None:
    assert APIClient().get(f"/api/v1/{path}").status_code == 401
