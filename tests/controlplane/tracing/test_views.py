"""REST of traces: one as list and tree, many by their entry spans."""

from typing import Any

import pytest
from django.db import connection
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from controlplane.placement import actions as placement
from controlplane.tracing.actions import store_spans
from controlplane.tracing.otlp import read_export
from controlplane.tracing.selectors import entry_spans
from tests.controlplane.placement.events import NOON, SESSION_ID, recorded
from tests.controlplane.tracing.messages import START_NS, TRACE, export, span

pytestmark = pytest.mark.django_db

QUERIES_OF_AUTHENTICATION = 2
OTHER_TRACE = bytes(range(16))


def store(*spans: SpanMessage, service: str = "backhaul-router") -> None:
    store_spans(read_export(export(*spans, service=service)).rows)


def store_turn() -> None:
    store(span(1), span(2, parent=1, name="prefill"), span(4, parent=1, name="decode"))
    store(span(3, parent=2, name="kv.transfer", attributes={"backhaul.tokens": 608}), service="backhaul-agent")


def get(api: APIClient, path: str, **query: Any) -> Any:
    response = api.get(f"/api/v1/{path}", query)
    assert response.status_code == 200, response.content
    return response.json()


def test_trace_is_a_list_and_a_tree_in_order_of_start(api: APIClient) -> None:
    store_turn()
    found = get(api, f"traces/{TRACE.hex()}")
    assert [row["name"] for row in found["spans"]] == ["turn", "prefill", "kv.transfer", "decode"]
    ids = {row["name"]: row["span_id"] for row in found["spans"]}
    transfer = {"span_id": ids["kv.transfer"], "children": []}
    prefill, decode = {"span_id": ids["prefill"], "children": [transfer]}, {"span_id": ids["decode"], "children": []}
    assert found["tree"] == [{"span_id": ids["turn"], "children": [prefill, decode]}]
    assert (found["num_spans"], found["truncated"], found["duration_ms"]) == (4, False, 8.0)
    assert found["services"] == ["backhaul-agent", "backhaul-router"]


def test_span_shows_its_fields(api: APIClient) -> None:
    store_turn()
    shown = get(api, f"traces/{TRACE.hex()}")["spans"][2]
    expected = {
        "trace_id": TRACE.hex(),
        "span_id": "0000000000000003",
        "parent_span_id": "0000000000000002",
        "name": "kv.transfer",
        "kind": "server",
        "service": "backhaul-agent",
        "start_unix_nano": str(START_NS + 3_000_000),
        "end_unix_nano": str(START_NS + 8_000_000),
        "offset_ms": 2.0,
        "duration_ms": 5.0,
        "status": "unset",
        "status_message": "",
        "attributes": {"backhaul.tokens": 608},
        "events": [],
        "links": [],
        "num_dropped": 0,
    }
    assert shown == expected


def test_upper_case_id_finds_the_trace(api: APIClient) -> None:
    store_turn()
    assert get(api, f"traces/{TRACE.hex().upper()}")["num_spans"] == 4


@pytest.mark.parametrize("trace_id", ["0" * 32, "xyz", TRACE.hex() + "0", f"{{{TRACE.hex()}}}", "turn"])
def test_unknown_trace_is_a_404_problem(api: APIClient, trace_id: str) -> None:
    store_turn()
    response = api.get(f"/api/v1/traces/{trace_id}")
    assert (response.status_code, response["Content-Type"]) == (404, "application/problem+json")


def test_traces_are_listed_by_their_entry_latest_first(api: APIClient) -> None:
    store_turn()
    store(span(10, trace_id=OTHER_TRACE, name="celery.run"), service="backhaul-controlplane")
    found = get(api, "traces")["results"]
    assert [(row["trace_id"], row["name"]) for row in found] == [
        (OTHER_TRACE.hex(), "celery.run"),
        (TRACE.hex(), "turn"),
    ]
    assert (found[1]["started_at"], found[1]["duration_ms"]) == ("2026-12-01T00:00:00.001000Z", 5.0)


def test_turn_below_a_clients_own_span_is_an_entry(api: APIClient) -> None:
    store(span(2, parent=99), span(3, parent=2, name="place"))
    assert [row["name"] for row in get(api, "traces")["results"]] == ["turn"]


def test_end_of_a_lease_is_no_entry_of_its_own(api: APIClient) -> None:
    store(span(5, trace_id=OTHER_TRACE, name="kv.lease"))
    assert get(api, "traces")["results"] == []
    assert get(api, f"traces/{OTHER_TRACE.hex()}")["num_spans"] == 1


def test_list_reads_the_index_of_entries(api: APIClient) -> None:
    store(*(span(number, parent=1, name="prefill") for number in range(2, 1500)), span(1))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tracing_span")
    assert "span_entries" in entry_spans().order_by("-start_ns", "trace_id", "span_id")[:50].explain()


def test_traces_of_a_session_are_those_of_its_turns(api: APIClient) -> None:
    store_turn()
    store(span(10, trace_id=OTHER_TRACE))
    event = recorded(trace_id=TRACE.hex())
    placement.apply_event(event, engine_name="", incarnation="", occurred_at=NOON)
    assert [row["trace_id"] for row in get(api, "traces", session=SESSION_ID)["results"]] == [TRACE.hex()]
    assert get(api, "traces", session="nobody")["results"] == []


def test_traces_of_a_service(api: APIClient) -> None:
    store_turn()
    assert get(api, "traces", service="backhaul-agent")["results"] == []
    assert len(get(api, "traces", service="backhaul-router")["results"]) == 1


def test_pages_hold_each_trace_once_even_with_equal_times(api: APIClient) -> None:
    for number in range(1, 6):
        store(span(1, trace_id=number.to_bytes(16)))
    page = get(api, "traces", page_size=2)
    found = [row["trace_id"] for row in page["results"]]
    while page["next"]:
        page = api.get(page["next"]).json()
        found += [row["trace_id"] for row in page["results"]]
    assert found == [f"{number:032x}" for number in range(1, 6)]


@pytest.mark.parametrize(
    ("path", "budget"), [("traces", 1), (f"traces?session={SESSION_ID}", 2), (f"traces/{TRACE.hex()}", 1)]
)
def test_reads_keep_to_their_query_budget(
    api: APIClient, django_assert_num_queries: DjangoAssertNumQueries, path: str, budget: int
) -> None:
    store_turn()
    placement.apply_event(recorded(trace_id=TRACE.hex()), engine_name="", incarnation="", occurred_at=NOON)
    with django_assert_num_queries(budget + QUERIES_OF_AUTHENTICATION):
        get(api, path)


@pytest.mark.parametrize("path", ["traces", f"traces/{TRACE.hex()}"])
def test_traces_need_an_operators_token(path: str) -> None:
    assert APIClient().get(f"/api/v1/{path}").status_code == 401
