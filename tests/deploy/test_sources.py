"""An edit restarts exactly the processes that import the edited file."""

from pathlib import Path

import pytest

from deploy.local.layout import Layout
from deploy.local.sources import sources_of

PACKAGES = ("connector/engine", "connector/agent", "connector/router", "controlplane")


@pytest.mark.parametrize(
    ("edited", "restarted"),
    [
        ("connector/engine/worker.py", {"connector/engine"}),
        ("connector/agent/feed.py", {"connector/agent"}),
        ("connector/router/app.py", {"connector/router"}),
        ("controlplane/fleet/views.py", {"controlplane"}),
        ("connector/protocol/agent.py", set(PACKAGES)),
        ("connector/signing.py", set(PACKAGES)),
        ("tests/test_x.py", set()),
        ("connector/__pycache__/x.pyc", set()),
    ],
)
def test_edit_restarts_what_imports_it(tmp_path: Path, edited: str, restarted: set[str]) -> None:
    layout = Layout(root=tmp_path, run=tmp_path / "run")
    for package in PACKAGES:
        (tmp_path / package).mkdir(parents=True)
    before = {package: sources_of(layout, package) for package in PACKAGES}
    (tmp_path / edited).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / edited).write_text("x = 1\n")
    assert {package for package in PACKAGES if sources_of(layout, package) != before[package]} == restarted
