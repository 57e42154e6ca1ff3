"""REST of policy: shapes, errors and query budgets."""

from typing import Any

import pytest
from rest_framework.test import APIClient

from controlplane.policy.models import PolicyAck, PolicyRevision

pytestmark = pytest.mark.django_db

PROBLEM_JSON = "application/problem+json"


def publish(api: APIClient, **body: Any) -> Any:
    return api.post("/api/v1/policies", {"scope": "fleet", "values": {"kv_recompute_threshold": 96}, **body})


def test_published_revision_is_returned_with_author_and_diff(api: APIClient) -> None:
    response = publish(api, reason="measured break-even")
    row = response.json()
    assert response.status_code == 201
    assert (row["number"], row["scope"], row["author"], row["reason"]) == (
        2,
        "fleet",
        "token:test-admin",
        "measured break-even",
    )
    assert row["diff"] == [{"field": "kv_recompute_threshold", "before": 64, "after": 96}]
    assert row["values"]["kv_recompute_threshold"] == 96
    assert api.get("/api/v1/policies/2").json() == row


def test_scope_that_sets_few_fields_shows_only_those(api: APIClient) -> None:
    row = publish(api, scope="tenant:acme").json()
    assert row["values"] == {"kv_recompute_threshold": 96}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"values": {"kv_recompute_threshold": -1}}, "values.kv_recompute_threshold"),
        ({"values": {"decoder_kv_blocks_ttl": 5}}, "values.decoder_kv_blocks_ttl"),
        ({"values": {"made_up": 1}}, "values.made_up"),
        ({"values": {}}, "values"),
        ({"values": []}, "values"),
        ({"scope": "planet:earth"}, "scope"),
        ({"scope": 5}, "scope"),
        ({"reason": "x" * 501}, "reason"),
    ],
)
def test_bad_publication_is_a_400_that_names_the_field(api: APIClient, body: dict[str, Any], field: str) -> None:
    response = publish(api, **body)
    assert (response.status_code, response["Content-Type"]) == (400, PROBLEM_JSON)
    assert [error["field"] for error in response.json()["errors"]] == [field]
    assert PolicyRevision.objects.count() == 1


@pytest.mark.parametrize("body", ["{", "[]", '"text"', '{"values": {"trace_sampling": NaN}}', '{"surplus": 1}', "{}"])
def test_malformed_body_is_a_400_problem(api: APIClient, body: str) -> None:
    response = api.post("/api/v1/policies", body, content_type="application/json")
    assert (response.status_code, response["Content-Type"]) == (400, PROBLEM_JSON)


def test_oversize_body_is_refused(api: APIClient) -> None:
    response = publish(api, reason="x" * (5 * 1024 * 1024))
    assert response.status_code in {400, 413}
    assert response["Content-Type"] == PROBLEM_JSON


def test_rollback_over_rest(api: APIClient) -> None:
    publish(api)
    response = api.post("/api/v1/policies/2/rollback")
    assert (response.status_code, response.json()["values"]["kv_recompute_threshold"]) == (201, 64)
    assert api.post("/api/v1/policies/2/rollback").status_code == 409
    assert api.post("/api/v1/policies/99/rollback").status_code == 404


def test_effective_values_of_tenant_and_session(api: APIClient) -> None:
    publish(api, scope="tenant:acme", values={"trace_sampling": 0.5})
    publish(api, scope="session:s1", values={"trace_sampling": 0.25})
    tenant = api.get("/api/v1/policies/effective?tenant=acme").json()
    both = api.get("/api/v1/policies/effective", {"tenant": "acme", "session": "s1"}).json()
    assert (tenant["values"]["trace_sampling"], both["values"]["trace_sampling"]) == (0.5, 0.25)
    assert both["scopes"] == ["fleet", "tenant:acme", "session:s1"]
    assert api.get("/api/v1/policies/effective").json()["values"]["trace_sampling"] == 1.0


@pytest.mark.parametrize("query", ["engine=nobody", "engine=has%20space", "role=router"])
def test_effective_of_an_unknown_subject_names_the_field(api: APIClient, query: str) -> None:
    response = api.get(f"/api/v1/policies/effective?{query}")
    assert response.status_code == 400
    assert response.json()["errors"][0]["field"] == query.partition("=")[0]


def test_list_is_newest_first_and_filtered_by_scope(api: APIClient) -> None:
    for scope in ("fleet", "tenant:acme", "fleet"):
        publish(api, scope=scope)
    numbers = [row["number"] for row in api.get("/api/v1/policies").json()["results"]]
    assert numbers == [4, 3, 2, 1]
    assert [row["number"] for row in api.get("/api/v1/policies?scope=tenant:acme").json()["results"]] == [3]


def test_query_budgets(api: APIClient, django_assert_max_num_queries: Any) -> None:
    for _ in range(10):
        publish(api)
    revision = PolicyRevision.objects.get(number=11)
    for number in range(30):
        PolicyAck.objects.create(
            revision=revision, kind="engine", enforcer=f"decode-{number}", expected=revision.values
        )
    with django_assert_max_num_queries(2):
        assert len(api.get("/api/v1/policies").json()["results"]) == 11
    with django_assert_max_num_queries(3):
        assert len(api.get("/api/v1/policies/11").json()["acks"]) == 30
