"""A failing program is quoted in one sentence; the rest is in its log."""

import sys
from pathlib import Path

import pytest

from deploy.local.commands import last_words, run_logged
from deploy.local.console import StackError
from deploy.local.frontend import bundled_npm, system_npm
from deploy.local.status import readable_duration
from tests.deploy.conftest import ROOT


def test_failure_quotes_the_last_error_and_names_the_log(tmp_path: Path) -> None:
    code = "import sys; print('ERROR: no wheel'); print('hint: look elsewhere'); sys.exit(3)"
    with pytest.raises(StackError, match=r"^installing failed: ERROR: no wheel \(all of its output: .*log\)$"):
        run_logged([sys.executable, "-c", code], tmp_path / "log", what="installing", directory=tmp_path)
    assert "hint: look elsewhere" in (tmp_path / "log").read_text()


def test_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="the program nothing-of-the-kind is missing"):
        run_logged(["nothing-of-the-kind"], tmp_path / "log", what="it", directory=tmp_path)


def test_endless_program_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(StackError, match="took longer than 1 s"):
        run_logged(command, tmp_path / "log", what="it", directory=tmp_path, timeout_seconds=1)


def test_only_this_runs_output_is_returned(tmp_path: Path) -> None:
    for word in ("first", "second"):
        printed = run_logged(
            [sys.executable, "-c", f"print({word!r})"], tmp_path / "log", what="it", directory=tmp_path
        )
        assert printed == f"{word}\n"


@pytest.mark.parametrize(
    ("printed", "wanted"),
    [
        ("", "it printed nothing"),
        ("one\ntwo\n\n", "two"),
        ("ValueError: bad\nbye\n", "ValueError: bad"),
        ("x" * 400, "x" * 300 + "…"),
    ],
)
def test_last_words_prefer_an_error(printed: str, wanted: str) -> None:
    assert last_words(printed) == wanted


@pytest.mark.parametrize(
    ("version", "is_taken"), [("v20.19.0", True), ("v24.1.0", True), ("v20.18.9", False), ("?", False)]
)
def test_nodes_version_decides_whose_node_builds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, *, is_taken: bool
) -> None:
    for name, answer in (("node", version), ("npm", "11")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {answer}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (system_npm() == [str(tmp_path / "npm")]) is is_taken


def test_bundled_node_is_found_or_asked_for(tmp_path: Path) -> None:
    node, script = bundled_npm(ROOT / ".venv")
    assert Path(node).exists()
    assert Path(script).exists()
    with pytest.raises(StackError, match=r"^no Node\.js"):
        bundled_npm(tmp_path)


def test_uptime_is_readable() -> None:
    assert [readable_duration(seconds) for seconds in (5, 65, 36000)] == ["0:00:05", "0:01:05", "10:00:00"]
