"""A real engine link on a socket of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.engine.link import EngineLink
from tests.connector.engine.link_engine import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "link" / "d-0.sock"


@pytest.fixture
def link(engine: FakeEngine, path: Path) -> Iterator[EngineLink]:
    made = EngineLink(path, engine.callbacks())
    yield made
    made.close()
