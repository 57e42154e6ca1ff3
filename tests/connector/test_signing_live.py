"""A running process follows its fleet key file: whole snapshots only, and a broken file changes nothing."""

import logging
import os
from pathlib import Path

import pytest

from connector.signing import FleetKey, FleetKeyFile

OLD = bytes(range(32))
NEW = bytes(range(1, 33))


def put(path: Path, *lines: str, mode: int = 0o600) -> Path:
    """Replaces the file at once, as operators should."""
    aside = path.with_suffix(".new")
    aside.write_text("\n".join(lines))
    aside.chmod(mode)
    aside.replace(path)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return put(tmp_path / "fleet.key", f"k1 {OLD.hex()}")


def test_an_unchanged_file_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = FleetKeyFile(path)
    monkeypatch.setattr(FleetKey, "load", lambda _: pytest.fail("read again"))
    assert not live.refresh()


def test_a_new_first_line_signs_and_the_old_one_verifies(path: Path) -> None:
    live = FleetKeyFile(path)
    put(path, f"k2 {NEW.hex()}", f"k1 {OLD.hex()}")
    assert live.refresh()
    assert live.current.key_ids == ("k2", "k1")
    assert not live.refresh()


def test_a_file_written_in_place_is_followed_too(path: Path) -> None:
    live = FleetKeyFile(path)
    path.write_text(f"k2 {NEW.hex()}\nk1 {OLD.hex()}\n")
    assert live.refresh()
    assert live.current.active_id == "k2"


def test_a_change_of_equal_size_and_time_is_seen(path: Path) -> None:
    live = FleetKeyFile(path)
    facts = path.stat()
    put(path, f"k1 {NEW.hex()}")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert live.refresh()
    assert live.current == FleetKey({"k1": NEW})


def test_a_snapshot_that_was_taken_stays_as_it_was(path: Path) -> None:
    live = FleetKeyFile(path)
    taken = live.current
    put(path, f"k2 {NEW.hex()}")
    live.refresh()
    assert taken.key_ids == ("k1",)


@pytest.mark.parametrize(
    ("lines", "mode", "why"),
    [
        ((), 0o600, "holds no key"),
        (("k2 nonsense",), 0o600, "line 1: the secret is not hexadecimal"),
        ((f"k2 {NEW.hex()}",), 0o644, "is readable by others"),
        ((f"k2 {NEW.hex()}", f"k2 {OLD.hex()}"), 0o600, "line 2: key id k2 stands there twice"),
    ],
)
def test_a_broken_file_keeps_the_old_keys_and_says_so_once(
    path: Path, caplog: pytest.LogCaptureFixture, lines: tuple[str, ...], mode: int, why: str
) -> None:
    live = FleetKeyFile(path)
    put(path, *lines, mode=mode)
    with caplog.at_level(logging.ERROR):
        assert not live.refresh()
        assert not live.refresh()
    (record,) = caplog.records
    assert why in record.getMessage()
    assert NEW.hex() not in record.getMessage()
    assert live.current == FleetKey({"k1": OLD})


def test_a_missing_file_keeps_the_old_keys(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = FleetKeyFile(path)
    path.unlink()
    assert not live.refresh()
    assert "cannot be read (No such file or directory)" in caplog.text
    assert live.current.active_id == "k1"


def test_a_mended_file_is_taken(path: Path) -> None:
    live = FleetKeyFile(path)
    put(path, f"k2 {NEW.hex()}", mode=0o640)
    assert not live.refresh()
    path.chmod(0o600)
    assert live.refresh()
    assert live.current.active_id == "k2"


def test_what_was_read_is_told_by_ids_only(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    live = FleetKeyFile(path)
    put(path, f"k2 {NEW.hex()}", f"k1 {OLD.hex()}")
    with caplog.at_level(logging.INFO):
        live.refresh()
    assert "k2 signs, k2, k1 verify" in caplog.text
    assert OLD.hex() not in caplog.text
    assert NEW.hex() not in caplog.text


def test_a_start_without_a_proper_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FleetKeyFile(tmp_path / "none")
    with pytest.raises(ValueError, match="holds no key"):
        FleetKeyFile(put(tmp_path / "fleet.key"))
