"""The doors that need no login, the schema, and the shape of what goes wrong at all of them."""

from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from redis.exceptions import ConnectionError as RedisConnectionError
from rest_framework.test import APIClient

from controlplane import health
from controlplane.celery import app as celery_app
from controlplane.fleet.models import Engine, Pair

PROBLEM_JSON = "application/problem+json"


def test_liveness_needs_no_database(client: Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}


@pytest.mark.django_db
def test_readiness_checks_database_redis_and_migrations(client: Client) -> None:
    response = client.get("/readyz")
    assert (response.status_code, response.json()) == (200, {"database": True, "redis": True, "migrations": True})


@pytest.mark.django_db
def test_readiness_names_the_part_that_is_missing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(key: str) -> None:
        raise RedisConnectionError("refused")

    monkeypatch.setattr(health.caches["default"], "get", fail)
    response = client.get("/readyz")
    assert (response.status_code, response.json()["redis"]) == (503, False)


@pytest.mark.django_db
def test_metrics_count_what_the_record_holds(client: Client, django_assert_max_num_queries: Any) -> None:
    Engine.objects.create(name="decode-0", role="decode", approved=True, reported_state="ready")
    Engine.objects.create(name="new")
    for name in ("with-leases", "more"):
        load = {"num_unread_blocks": 20, "unread_block_seconds": 1.5}
        Engine.objects.create(name=name, role="decode", load=load)
    Pair.objects.create(source="p", target="d", direction="P->D", num_fenced=3)
    Pair.objects.create(source="p", target="e", direction="P->D", num_fenced=4)
    with django_assert_max_num_queries(11):
        text = client.get("/metrics").content.decode()
    assert 'backhaul_engines{role="decode",state="ready"} 1.0' in text
    assert 'backhaul_engines{role="unknown",state="pending"} 1.0' in text
    assert "backhaul_policy_revision 1.0" in text
    assert 'backhaul_reads_after_expiry_total{direction="P->D"} 7.0' in text
    assert "backhaul_unread_blocks 40.0" in text
    assert "backhaul_unread_block_seconds 3.0" in text
    assert "decode-0" not in text


def test_unknown_address_is_a_problem_document(client: Client) -> None:
    response = client.get("/no/such/page")
    assert (response.status_code, response["Content-Type"]) == (404, PROBLEM_JSON)
    assert response.json()["status"] == 404


@pytest.mark.django_db
def test_unexpected_fault_is_a_problem_document_without_details(
    api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr("controlplane.fleet.views.EngineViewSet.list", fail)
    api.raise_request_exception = False
    response = api.get("/api/v1/engines")
    assert (response.status_code, response["Content-Type"]) == (500, PROBLEM_JSON)
    assert b"secret detail" not in response.content


@pytest.mark.parametrize("path", ["/healthz", "/api/v1/engines", "/no/such/page", "/login/"])
@pytest.mark.django_db
def test_every_response_carries_the_security_headers(client: Client, path: str) -> None:
    headers = client.get(path).headers
    assert "default-src" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "same-origin"


def test_foreign_host_header_is_refused(client: Client) -> None:
    response = client.get("/healthz", headers={"Host": "evil.example"})
    assert (response.status_code, response["Content-Type"]) == (400, PROBLEM_JSON)


@pytest.mark.django_db
def test_models_and_migrations_agree() -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_settings_pass_djangos_checks() -> None:
    call_command("check", "--fail-level", "WARNING")


def test_schema_is_generated_without_warnings(tmp_path: Any) -> None:
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(tmp_path / "schema.yml"))


@pytest.mark.django_db
def test_schema_documents_addresses_without_trailing_slash(client: Client) -> None:
    schema = client.get("/api/schema/", headers={"Accept": "application/json"}).json()
    assert {"/api/v1/engines", "/api/v1/policies/{number}", "/api/v1/policies/effective"} <= schema["paths"].keys()
    assert not [path for path in schema["paths"] if path.endswith("/")]


def test_beat_knows_every_apps_schedule_and_worker_every_task() -> None:
    celery_app.finalize()
    celery_app.loader.import_default_modules()
    schedule = celery_app.conf.beat_schedule
    assert {"fleet.mark_silent", "policy.note_overdue_acks"} <= schedule.keys()
    assert {entry["task"] for entry in schedule.values()} <= celery_app.tasks.keys()
