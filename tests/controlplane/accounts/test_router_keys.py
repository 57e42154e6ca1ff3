"""API keys of the routers' clients: made once, shown once, known to routers, shut out for good."""

import pytest
from rest_framework.test import APIClient

from controlplane.accounts.models import AuditEntry, RouterKey
from controlplane.accounts.secrets import SECRET_PATTERN, sha256_of
from controlplane.accounts.selectors import router_keys

pytestmark = pytest.mark.django_db


def test_key_is_shown_once_and_is_no_operators_unless_said(api: APIClient) -> None:
    response = api.post("/api/v1/router-keys", {"tenant": "acme", "name": "ci"})
    row = response.json()
    assert (response.status_code, response["Cache-Control"]) == (201, "no-store")
    assert SECRET_PATTERN.match(row["secret"])
    assert (row["tenant"], row["operator"], row["revoked_at"]) == ("acme", False, None)
    key = RouterKey.objects.get(pk=row["id"])
    assert key.sha256 == sha256_of(row["secret"])
    assert row["secret"] not in str(api.get("/api/v1/router-keys").json())
    assert row["secret"] not in str(list(AuditEntry.objects.values()))
    assert key in router_keys()


def test_operators_keys_are_told_apart_and_audited(api: APIClient) -> None:
    api.post("/api/v1/router-keys", {"tenant": "acme", "name": "app"})
    made = api.post("/api/v1/router-keys", {"tenant": "acme", "name": "ops", "operator": True}).json()
    listed = api.get("/api/v1/router-keys?operator=true").json()["results"]
    assert [row["id"] for row in listed] == [made["id"]]
    entry = AuditEntry.objects.get(object_id=made["id"])
    assert (entry.action, entry.after) == ("create", {"tenant": "acme", "name": "ops", "operator": True})


def test_revoked_key_is_no_longer_told_to_routers(api: APIClient) -> None:
    made = api.post("/api/v1/router-keys", {"tenant": "acme", "name": "ops", "operator": True}).json()
    for _ in range(2):
        assert api.post(f"/api/v1/router-keys/{made['id']}/revoke").json()["revoked_at"]
    assert not router_keys().exists()
    assert AuditEntry.objects.filter(action="revoke").count() == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x"}, "tenant"),
        ({"tenant": "acme"}, "name"),
        ({"tenant": "a b", "name": "x"}, "tenant"),
        ({"tenant": "acme\n", "name": "x\n" * 100}, "name"),
        ({"tenant": "acme", "name": "x", "operator": "perhaps"}, "operator"),
    ],
)
def test_bad_request_names_its_field(api: APIClient, body: dict[str, object], field: str) -> None:
    response = api.post("/api/v1/router-keys", body)
    assert response.status_code == 400
    assert field in [error["field"] for error in response.json()["errors"]]
