"""The browser's login: session, CSRF, limits."""

import pytest
from django.core.cache import cache
from django.test import Client

from controlplane.accounts import attempts
from controlplane.accounts.models import User

pytestmark = pytest.mark.django_db

PASSWORD = "a long enough password"


@pytest.fixture(autouse=True)
def user() -> User:
    cache.clear()
    return User.objects.create_user("ann", password=PASSWORD)


def log_in(client: Client, password: str = PASSWORD, **extra: str) -> int:
    return client.post("/login/", {"username": "ann", "password": password, "next": "/", **extra}).status_code


def test_login_page_is_safe_to_show() -> None:
    response = Client().get("/login/?next=/")
    assert response.status_code == 200
    assert "script-src" not in response["Content-Security-Policy"]
    assert response["X-Frame-Options"] == "DENY"
    assert response.cookies["csrftoken"]["samesite"] == "Lax"


def test_login_opens_rest_by_cookie_and_logout_closes_it(client: Client) -> None:
    assert client.get("/api/v1/engines").status_code == 401
    assert log_in(client) == 302
    assert client.cookies["sessionid"]["httponly"]
    assert client.get("/api/v1/engines").status_code == 200
    client.post("/logout/")
    assert client.get("/api/v1/engines").status_code == 401


def test_session_cookie_alone_changes_nothing_without_csrf_token() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get())
    response = client.post("/api/v1/tokens", {"kind": "admin", "name": "x"}, content_type="application/json")
    assert (response.status_code, response["Content-Type"]) == (403, "application/problem+json")


def test_form_without_csrf_token_is_refused() -> None:
    assert log_in(Client(enforce_csrf_checks=True)) == 403


def test_login_does_not_redirect_elsewhere(client: Client) -> None:
    response = client.post("/login/", {"username": "ann", "password": PASSWORD, "next": "https://example.com/"})
    assert response["Location"] == "/"


def test_guessing_is_stopped_per_name_and_address(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_PER_NAME", 3)
    assert [log_in(client, "wrong") for _ in range(4)] == [200, 200, 200, 429]
    response = client.post("/login/", {"username": "ann", "password": PASSWORD})
    assert (response.status_code, response["Retry-After"]) == (429, "300")
    elsewhere = Client(REMOTE_ADDR="192.0.2.7")
    assert log_in(elsewhere) == 302


def test_guessing_many_names_is_stopped_per_address(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_PER_ADDRESS", 3)
    for number in range(3):
        client.post("/login/", {"username": f"user{number}", "password": "wrong"})
    assert log_in(client) == 429
