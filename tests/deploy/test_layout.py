"""Private directories, and sockets whose paths the kernel takes."""

import stat
import tempfile
from pathlib import Path

import pytest

from deploy.local.console import StackError
from deploy.local.layout import LONGEST_SOCKET_NAME, MAX_SOCKET_PATH_BYTES, Layout


def test_run_directory_and_its_parts_are_private(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path, run=tmp_path / "run")
    layout.run.mkdir(mode=0o755)
    layout.create()
    for folder in (layout.run, layout.logs, layout.state, layout.stamps, layout.sockets):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_sockets_lie_in_the_run_directory_when_the_path_is_short(tmp_path: Path) -> None:
    layout = Layout(root=tmp_path, run=Path("/srv/backhaul/.run"))
    assert layout.link_path("prefill-0") == Path("/srv/backhaul/.run/engines/prefill-0.sock")


def test_long_run_directory_gets_a_short_socket_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        layout = Layout(root=tmp_path, run=tmp_path / ("x" * 100))
        layout.create()
        assert layout.sockets.parent == Path(runtime)
        assert stat.S_IMODE(layout.sockets.stat().st_mode) == 0o700
        assert (layout.run / "sockets-dir").read_text().strip() == str(layout.sockets)


def test_long_runtime_directory_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"/{'y' * 100}")
    layout = Layout(root=tmp_path, run=tmp_path / ("x" * 100))
    assert layout.sockets.parent == Path(tempfile.gettempdir())
    assert len(str(layout.sockets / LONGEST_SOCKET_NAME)) <= MAX_SOCKET_PATH_BYTES


def test_two_stacks_never_share_a_socket_directory(tmp_path: Path) -> None:
    one = Layout(root=tmp_path, run=Path("/srv") / ("x" * 100))
    two = Layout(root=tmp_path, run=Path("/srv") / ("x" * 101))
    assert one.sockets != two.sockets


def test_run_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StackError, match="not a directory of this user"):
        Layout(root=tmp_path, run=tmp_path / "run").create()


@pytest.mark.parametrize("character", [";", "#", "%", '"', "\n"])
def test_path_that_supervisord_cannot_quote_is_refused(tmp_path: Path, character: str) -> None:
    with pytest.raises(StackError, match="can't quote"):
        Layout(root=tmp_path, run=tmp_path / f"a {character}b").create()
