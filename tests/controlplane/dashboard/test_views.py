"""The page and its assets over HTTP."""

import gzip
from pathlib import Path

import pytest
from django.test import Client

from controlplane.accounts.models import User
from controlplane.dashboard.frontend import find_asset, render_page

PAGE = '<meta name="backhaul-user" content="" /><meta name="backhaul-csrf-token" content="" />'


@pytest.mark.django_db
def test_page_needs_a_login(client: Client, built_frontend: Path) -> None:
    response = client.get("/")
    assert (response.status_code, response["Location"]) == (302, "/login/?next=/")


def test_page_carries_user_and_csrf_token_and_allows_no_inline_code(
    client: Client, operator: User, built_frontend: Path
) -> None:
    client.force_login(operator)
    response = client.get("/")
    body = response.content.decode()
    assert 'name="backhaul-user" content="operator"' in body
    assert 'name="backhaul-csrf-token" content=""' not in body
    assert response.cookies["csrftoken"].value
    assert "no-store" in response["Cache-Control"]
    policy = response["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_missing_build_says_what_to_do(client: Client, operator: User, built_frontend: Path) -> None:
    (built_frontend / "index.html").unlink()
    client.force_login(operator)
    response = client.get("/")
    assert response.status_code == 503
    assert b"npm run build" in response.content


def test_assets_are_kept_for_good_and_compressed_on_request(client: Client, built_frontend: Path) -> None:
    plain = client.get("/assets/index-abc123.js")
    packed = client.get("/assets/index-abc123.js", headers={"Accept-Encoding": "gzip, br"})
    assert plain.content == b"console.log('page')\n"
    assert plain["Content-Type"] == "text/javascript"
    assert "immutable" in plain["Cache-Control"]
    assert packed["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.content) == plain.content


@pytest.mark.parametrize(
    "name", ["../secret.txt", "..%2Fsecret.txt", "%2e%2e/secret.txt", ".hidden", "no-such.js", "%00"]
)
def test_nothing_outside_the_build_is_served(client: Client, built_frontend: Path, name: str) -> None:
    assert client.get(f"/assets/{name}").status_code == 404


@pytest.mark.parametrize("name", ["../secret.txt", "..", "", ".env", "a/b.js", "a\\b.js", "a\0.js", "/etc/passwd"])
def test_asset_names_cannot_leave_their_folder(built_frontend: Path, name: str) -> None:
    assert find_asset(built_frontend / "assets", name) is None


def test_changed_asset_is_read_again(built_frontend: Path) -> None:
    first = find_asset(built_frontend, "index.html")
    (built_frontend / "index.html").write_text("second build")
    second = find_asset(built_frontend, "index.html")
    assert first is not None
    assert second is not None
    assert (first.body, second.body) == (first.body, b"second build")


def test_user_name_cannot_break_out_of_the_page() -> None:
    page = render_page(PAGE.encode(), user='"><script>alert(1)</script>', csrf_token="t")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.django_db
def test_trace_address_needs_a_login_and_leads_to_its_json(client: Client, operator: User) -> None:
    address = "/traces/0af7651916cd43dd8448eb211c80319c"
    assert client.get(address)["Location"].startswith("/login/")
    client.force_login(operator)
    assert client.get(address)["Location"] == "/api/v1/traces/0af7651916cd43dd8448eb211c80319c"
