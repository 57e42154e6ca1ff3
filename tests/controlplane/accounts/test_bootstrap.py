"""``manage.py bootstrap``: a run directory's secrets become valid, and stay what they are."""

import stat
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from rest_framework.test import APIClient

from controlplane.accounts.models import ApiToken, RouterKey, User
from controlplane.accounts.secrets import sha256_of

pytestmark = pytest.mark.django_db

FILES = {"admin-token", "admin-login", "agent-token", "router-token", "api-key"}


def bootstrap(run_dir: Path) -> str:
    output = StringIO()
    call_command("bootstrap", "--run-dir", str(run_dir), stdout=output)
    return output.getvalue()


def read_all(run_dir: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in run_dir.iterdir()}


def test_missing_secrets_are_made_private_and_valid(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    printed = bootstrap(run_dir)
    assert {path.name for path in run_dir.iterdir()} == FILES
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in run_dir.iterdir()} == {0o600}
    secret = (run_dir / "admin-token").read_text().strip()
    assert secret not in printed
    assert APIClient(headers={"Authorization": f"Bearer {secret}"}).get("/api/v1/engines").status_code == 200
    assert ApiToken.objects.get(kind="agent").auto_approve
    key = RouterKey.objects.get()
    assert (key.tenant, key.sha256) == ("default", sha256_of((run_dir / "api-key").read_text().strip()))
    username, password = (run_dir / "admin-login").read_text().split()
    assert Client().login(username=username, password=password)


def test_repeating_changes_nothing(tmp_path: Path) -> None:
    bootstrap(tmp_path)
    before, tokens = read_all(tmp_path), set(ApiToken.objects.values_list("pk", "sha256"))
    password = User.objects.get().password
    printed = bootstrap(tmp_path)
    assert (read_all(tmp_path), set(ApiToken.objects.values_list("pk", "sha256"))) == (before, tokens)
    assert User.objects.get().password == password
    assert printed.count("kept, already registered") == len(FILES)


def test_existing_secrets_are_registered_with_a_fresh_database(tmp_path: Path) -> None:
    bootstrap(tmp_path)
    before = read_all(tmp_path)
    ApiToken.objects.all().delete()
    RouterKey.objects.all().delete()
    User.objects.all().delete()
    assert bootstrap(tmp_path).count("kept, registered") == len(FILES)
    assert read_all(tmp_path) == before
    assert ApiToken.objects.count() == 3


@pytest.mark.parametrize(("name", "content"), [("admin-token", "\n"), ("admin-login", "nopassword\n")])
def test_unusable_file_is_named_in_one_sentence(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CommandError, match=name):
        bootstrap(tmp_path)


def test_revoked_secret_is_not_made_valid_again(tmp_path: Path) -> None:
    bootstrap(tmp_path)
    token = ApiToken.objects.get(kind="agent")
    token.revoked_at = token.created_at
    token.save()
    with pytest.raises(CommandError, match="revoked"):
        bootstrap(tmp_path)
