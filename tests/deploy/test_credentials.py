"""Secrets are made once, private, and never changed."""

import re
import stat
from pathlib import Path

import pytest

from connector.signing import FleetKey
from deploy.local import credentials
from deploy.local.console import StackError


def test_files_are_private_and_kept(tmp_path: Path) -> None:
    made = credentials.make_missing(tmp_path)
    before = {name: (tmp_path / name).read_text() for name in made}
    assert set(made) == set(credentials.FILES)
    assert all(stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600 for name in made)
    assert credentials.make_missing(tmp_path) == []
    assert {name: (tmp_path / name).read_text() for name in made} == before


def test_lost_file_alone_is_made_anew(tmp_path: Path) -> None:
    credentials.make_missing(tmp_path)
    (tmp_path / "feed-token").unlink()
    assert credentials.make_missing(tmp_path) == ["feed-token"]


def test_permissions_that_someone_widened_are_narrowed(tmp_path: Path) -> None:
    credentials.make_missing(tmp_path)
    (tmp_path / "fleet.key").chmod(0o644)
    credentials.make_missing(tmp_path)
    assert stat.S_IMODE((tmp_path / "fleet.key").stat().st_mode) == 0o600


def test_tokens_have_the_agreed_shape(tmp_path: Path) -> None:
    credentials.make_missing(tmp_path)
    for name, kind in (("admin-token", "admin"), ("api-key", "api"), ("agent-token", "agent")):
        assert re.fullmatch(rf"bh_{kind}_[A-Za-z0-9_-]{{43}}", credentials.read(tmp_path / name))
    assert re.fullmatch(r"admin \S{12,}", credentials.read(tmp_path / "admin-login"))


def test_fleet_key_is_one_that_engines_take(tmp_path: Path) -> None:
    credentials.make_missing(tmp_path)
    assert FleetKey.load(tmp_path / "fleet.key").active_id == "k1"


def test_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "api-key").touch()
    with pytest.raises(StackError, match="api-key is empty"):
        credentials.make_missing(tmp_path)
