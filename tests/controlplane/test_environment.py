"""The environment is typed, and a bad one is refused with a sentence that names the variable."""

import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.environment import InvalidEnvironmentError, read_environment


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    key = tmp_path / "secret-key"
    key.write_text("k" * 64 + "\n")
    return {
        "BACKHAUL_DATABASE_URL": "postgresql://ann:p%40ss@db.example:5433/backhaul?sslmode=require",
        "BACKHAUL_REDIS_URL": "redis://:secret@127.0.0.1:6379/0",
        "BACKHAUL_SECRET_KEY_FILE": str(key),
    }


def test_database_address_is_taken_apart(variables: dict[str, str]) -> None:
    database = read_environment(variables).database
    assert (database.host, database.port, database.name) == ("db.example", 5433, "backhaul")
    assert (database.user, database.password, database.options) == ("ann", "p@ss", {"sslmode": "require"})


def test_defaults_are_loopback_and_private(variables: dict[str, str]) -> None:
    environment = read_environment(variables)
    assert environment.allowed_hosts == ("127.0.0.1", "localhost")
    assert (environment.behind_tls, environment.otlp_endpoint) == (False, "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BACKHAUL_DATABASE_URL", ""),
        ("BACKHAUL_DATABASE_URL", "mysql://x/y"),
        ("BACKHAUL_DATABASE_URL", "postgresql://127.0.0.1:notaport/x"),
        ("BACKHAUL_DATABASE_URL", "postgresql://127.0.0.1"),
        ("BACKHAUL_REDIS_URL", "http://127.0.0.1"),
        ("BACKHAUL_SECRET_KEY_FILE", "/nonexistent"),
        ("BACKHAUL_ALLOWED_HOSTS", "*"),
        ("BACKHAUL_ALLOWED_HOSTS", " , "),
        ("BACKHAUL_TRACE_RETENTION_HOURS", "0"),
        ("BACKHAUL_TRACE_RETENTION_HOURS", "soon"),
        ("BACKHAUL_TLS", "yes"),
        ("BACKHAUL_LOG_LEVEL", "LOUD"),
    ],
)
def test_bad_value_is_refused_in_one_sentence(variables: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(InvalidEnvironmentError, match=name) as refusal:
        read_environment({**variables, name: value})
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)


def test_short_secret_key_is_refused(variables: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "secret-key").write_text("short\n")
    with pytest.raises(InvalidEnvironmentError, match="BACKHAUL_SECRET_KEY_FILE"):
        read_environment(variables)


def test_process_ends_with_the_sentence_and_no_traceback(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "manage.py", "check"],
        cwd=Path(__file__).parents[2],
        env={"DJANGO_SETTINGS_MODULE": "controlplane.settings.production"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("backhaul: BACKHAUL_DATABASE_URL is not set")
    assert "Traceback" not in result.stderr
