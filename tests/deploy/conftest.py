"""A run directory of its own for each test, and what the real servers need."""

import socket
from pathlib import Path

import pytest

from deploy.local.environment import Options, read_options
from deploy.local.layout import Layout

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """Of this checkout, with a run directory whose path holds a space."""
    return read_options({"BACKHAUL_RUN_DIR": str(tmp_path / "run dir")}, ROOT)


@pytest.fixture
def layout(options: Options) -> Layout:
    options.layout.create()
    return options.layout
