"""Rotating a fleet key file: atomic, private, and silent about secrets."""

import stat
from pathlib import Path

import pytest

from connector.signing import FleetKey, operate
from connector.signing.__main__ import main

SECRET = bytes(range(32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "fleet.key"
    file.write_text(f"k1 {SECRET.hex()}\n")
    file.chmod(0o600)
    return file


def only_file_in(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def test_rotate_puts_a_new_random_key_first_and_keeps_the_old_one(path: Path) -> None:
    key_id = operate.rotate(path)
    key = FleetKey.load(path)
    assert key.key_ids == (key_id, "k1")
    assert key.session_key("k1") == FleetKey({"k1": SECRET}).session_key()
    assert key.session_key(key_id) != key.session_key("k1")
    assert only_file_in(path.parent) == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_staged_key_verifies_until_it_is_promoted(path: Path) -> None:
    key_id = operate.stage(path)
    assert operate.key_ids(path) == ("k1", key_id)
    operate.promote(path, key_id)
    assert operate.key_ids(path) == (key_id, "k1")


def test_an_old_key_is_taken_out(path: Path) -> None:
    key_id = operate.rotate(path)
    operate.remove(path, "k1")
    assert operate.key_ids(path) == (key_id,)


def test_the_signing_key_is_not_taken_out(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match="k1 is the key that signs"):
        operate.remove(path, "k1")
    assert path.read_bytes() == before


@pytest.mark.parametrize("change", [operate.promote, operate.remove])
def test_an_unknown_key_is_refused(path: Path, change: object) -> None:
    with pytest.raises(ValueError, match="holds no key k9; it holds k1"):
        change(path, "k9")  # type: ignore[operator]


def test_no_more_keys_than_engines_take(path: Path) -> None:
    for _ in range(15):
        operate.rotate(path)
    with pytest.raises(ValueError, match="16 keys already"):
        operate.rotate(path)
    assert len(operate.key_ids(path)) == 16


def test_a_file_that_engines_would_refuse_is_not_touched(path: Path) -> None:
    path.chmod(0o644)
    with pytest.raises(ValueError, match="readable by others"):
        operate.rotate(path)
    assert path.read_text() == f"k1 {SECRET.hex()}\n"


def test_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.key"
    link.symlink_to(path)
    operate.rotate(link)
    assert link.is_symlink()
    assert len(operate.key_ids(path)) == 2


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        operate.rotate(path)
    assert only_file_in(path.parent).read_text() == f"k1 {SECRET.hex()}\n"


def test_the_command_prints_key_ids_and_no_secret(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rotate", str(path)]) == 0
    shown = capsys.readouterr().out
    (new_id, old_id) = operate.key_ids(path)
    assert shown == f"{new_id} signs\n{old_id} verifies\n"
    assert not any(line.split()[1] in shown for line in path.read_text().splitlines())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["remove", "{path}", "k1"], "k1 is the key that signs; rotate or promote another one first.\n"),
        (["list", "{path}.none"], "can't be used (No such file or directory).\n"),
    ],
)
def test_a_refusal_is_one_sentence(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main([argument.replace("{path}", str(path)) for argument in arguments]) == 2
    assert capsys.readouterr().err.endswith(sentence)


def test_each_step_of_a_rotation_over_several_hosts(path: Path) -> None:
    assert main(["stage", str(path)]) == 0
    new_id = operate.key_ids(path)[1]
    assert main(["promote", str(path), new_id]) == 0
    assert main(["remove", str(path), "k1"]) == 0
    assert operate.key_ids(path) == (new_id,)
