"""A step is skipped exactly when nothing that it was made from has changed."""

from pathlib import Path

from deploy.local.stamps import digest_of, is_current, write_stamp


def test_digest_follows_contents_names_and_extras(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one")
    first = digest_of([tmp_path])
    assert digest_of([tmp_path]) == first
    assert digest_of([tmp_path], "x") != first
    (tmp_path / "a.py").write_text("two")
    second = digest_of([tmp_path])
    assert second != first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert digest_of([tmp_path]) not in (first, second)


def test_what_a_build_leaves_behind_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one")
    first = digest_of([tmp_path])
    for name in ("__pycache__", "node_modules", "dist"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "left.bin").write_text("x")
    assert digest_of([tmp_path]) == first


def test_stamp_is_current_only_for_its_digest(tmp_path: Path) -> None:
    stamp = tmp_path / "new folder" / "stamp"
    assert not is_current(stamp, "d1")
    write_stamp(stamp, "d1")
    assert is_current(stamp, "d1")
    assert not is_current(stamp, "d2")
