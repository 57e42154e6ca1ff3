"""Tokens: made once, shown once, shut out for good."""

from datetime import timedelta

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.accounts.actions import create_token
from controlplane.accounts.models import ApiToken, AuditEntry, TokenKind
from controlplane.accounts.secrets import SECRET_PATTERN, sha256_of

pytestmark = pytest.mark.django_db


def with_secret(secret: str) -> APIClient:
    return APIClient(headers={"Authorization": f"Bearer {secret}"})


def test_secret_is_shown_once_and_kept_as_a_hash(api: APIClient) -> None:
    response = api.post("/api/v1/tokens", {"kind": "agent", "name": "rack 7", "auto_approve": True})
    row = response.json()
    assert (response.status_code, response["Cache-Control"]) == (201, "no-store")
    assert SECRET_PATTERN.match(row["secret"])
    token = ApiToken.objects.get(pk=row["id"])
    assert (token.sha256, token.created_by, token.auto_approve) == (sha256_of(row["secret"]), "token:test-admin", True)
    listed = api.get("/api/v1/tokens?kind=agent").json()["results"]
    assert [found["id"] for found in listed] == [row["id"]]
    assert row["secret"] not in str(api.get("/api/v1/tokens").json())
    assert row["secret"] not in str(list(AuditEntry.objects.values()))


def test_made_admin_token_opens_rest_until_it_is_revoked(api: APIClient) -> None:
    row = api.post("/api/v1/tokens", {"kind": "admin", "name": "ci"}).json()
    other = with_secret(row["secret"])
    assert other.get("/api/v1/tokens").status_code == 200
    for _ in range(2):
        assert api.post(f"/api/v1/tokens/{row['id']}/revoke").json()["revoked_at"]
    assert other.get("/api/v1/tokens").status_code == 401
    assert AuditEntry.objects.filter(action="revoke").count() == 1


@pytest.mark.parametrize("kind", [TokenKind.AGENT, TokenKind.ROUTER, TokenKind.TELEMETRY])
def test_other_kinds_do_not_open_rest(kind: TokenKind) -> None:
    secret = create_token(kind=kind, name="x", actor="test")[1]
    assert with_secret(secret).get("/api/v1/tokens").status_code == 401


def test_expired_token_does_not_open_rest() -> None:
    past = timezone.now() - timedelta(seconds=1)
    secret = create_token(kind=TokenKind.ADMIN, name="x", actor="test", expires_at=past)[1]
    assert with_secret(secret).get("/api/v1/tokens").status_code == 401


@pytest.mark.parametrize("header", ["Bearer", "Bearer ", "Basic YWRtaW46eA==", "Bearer " + "x" * 600, "bh_admin_x"])
def test_malformed_authorization_is_a_401_never_anonymous(header: str) -> None:
    response = APIClient(headers={"Authorization": header}).get("/api/v1/tokens")
    assert (response.status_code, response["Content-Type"]) == (401, "application/problem+json")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"kind": "king", "name": "x"}, "kind"),
        ({"kind": "admin"}, "name"),
        ({"kind": "admin", "name": "x", "auto_approve": True}, "auto_approve"),
        ({"kind": "admin", "name": "x", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"kind": "admin", "name": "x" * 129}, "name"),
    ],
)
def test_bad_token_request_names_its_field(api: APIClient, body: dict[str, object], field: str) -> None:
    response = api.post("/api/v1/tokens", body)
    assert response.status_code == 400
    assert [error["field"] for error in response.json()["errors"]] == [field]


def test_use_is_noted_to_the_minute(api: APIClient) -> None:
    api.get("/api/v1/tokens")
    token = ApiToken.objects.get(name="test-admin")
    first = token.last_used_at
    assert first is not None
    api.get("/api/v1/tokens")
    token.refresh_from_db()
    assert token.last_used_at == first


def test_audit_lists_changes_newest_first_and_filters(api: APIClient) -> None:
    api.post("/api/v1/tokens", {"kind": "admin", "name": "ci"})
    rows = api.get("/api/v1/audit?object_kind=token&actor=token:test-admin").json()["results"]
    assert [(row["action"], row["after"]["name"]) for row in rows] == [("create", "ci")]
    assert api.post("/api/v1/audit", {}).status_code == 405
