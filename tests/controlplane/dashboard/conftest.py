from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.accounts.models import User
from tests.controlplane.dashboard.page import OpenPage, log_in, opened_page
from tests.controlplane.dashboard.server import ControlPlaneServer


@pytest.fixture(scope="session")
def control_plane(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlaneServer]:
    server = ControlPlaneServer(tmp_path_factory.mktemp("controlplane"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def operator(transactional_db: None) -> User:
    return User.objects.create_user("operator", password="a long enough password")


@pytest.fixture
def session_key(operator: User) -> str:
    return log_in(operator)


@pytest.fixture
def page(control_plane: ControlPlaneServer, session_key: str) -> Iterator[OpenPage]:
    with opened_page(control_plane.ws_url, session_key) as page:
        yield page


@pytest.fixture
def built_frontend(tmp_path: Path, settings: object) -> Path:
    """A tiny stand-in for ``frontend/dist`` with the markers that the view fills."""
    dist = tmp_path / "dist"
    (dist / "assets").mkdir(parents=True)
    (dist / "index.html").write_text(
        '<meta name="backhaul-csrf-token" content="" /><meta name="backhaul-user" content="" />'
    )
    (dist / "assets" / "index-abc123.js").write_text("console.log('page')\n")
    (tmp_path / "secret.txt").write_text("outside of the build")
    settings.FRONTEND_DIST = dist  # type: ignore[attr-defined]
    return dist
