"""The doors that need no login, and the shape of what goes wrong at all of them."""

import pytest
from django.test import Client

PROBLEM_JSON = "application/problem+json"


def test_liveness_needs_no_database(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}


@pytest.mark.django_db
def test_readiness_checks_database_redis_and_migrations(client: Client) -> None:
    response = client.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"database": True, "redis": True, "migrations": True})


def test_unknown_address_is_a_problem_document(client: Client) -> None:
    response = client.get("/no/such/page")
    assert (response.status_code, response["Content-Type"]) == (404, PROBLEM_JSON)
    assert response.json()["status"] == 404
