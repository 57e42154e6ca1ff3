"""The built page in headless Chromium, against a control plane in its own process on real Postgres and Redis."""

import asyncio
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.conf import settings
from django.contrib.auth.hashers import Argon2PasswordHasher
from django.db import connection
from playwright.async_api import Browser, Page, async_playwright, expect

from controlplane.accounts.actions import create_token
from controlplane.accounts.models import TokenKind, User
from tests.controlplane.dashboard.page import log_in
from tests.controlplane.dashboard.server import ControlPlaneServer
from tests.controlplane.services import Services

T = TypeVar("T")

expect.set_options(timeout=20_000)  # generous: a busy machine paints late

FRONTEND = Path(__file__).parents[2] / "frontend"
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PASSWORD = "a long enough password"


def run_npm(*arguments: str) -> None:
    """With the Node of the machine, or else the one in the Python environment."""
    path = f"{os.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}"
    npm = shutil.which("npm", path=path)
    assert npm, "there is no npm to build the frontend: install Node 20.19 or later"
    subprocess.run([npm, *arguments], cwd=FRONTEND, env={**os.environ, "PATH": path}, check=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts these tests last, so that in one session with ``tests/controlplane`` its servers are there already."""
    items.sort(key=lambda item: Path(__file__).parent in item.path.parents)


@pytest.fixture(scope="session", autouse=True)
def services() -> Iterator[None]:
    """The servers that ``tests/controlplane`` starts too; in one session with it they run already."""
    if not settings.HAS_THROWAWAY_SERVERS or settings.THROWAWAY_FOLDER.exists():
        yield
        return
    servers = Services(settings.THROWAWAY_FOLDER)
    try:
        servers.start(
            postgres_port=settings.POSTGRES_PORT, password=settings.THROWAWAY_PASSWORD, redis_port=settings.REDIS_PORT
        )
        yield
    finally:
        servers.stop()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(services: None) -> None:
    """pytest-django makes its test database after this, so the server is up by then."""


@pytest.fixture(scope="session")
def node_modules() -> Path:
    folder = FRONTEND / "node_modules"
    if not (folder / ".package-lock.json").exists():
        run_npm("ci")
    return folder


@pytest.fixture(scope="session")
def built_frontend(node_modules: Path) -> Path:
    """``frontend/dist``, built anew when a source is younger."""
    index = FRONTEND / "dist" / "index.html"
    sources = [path for path in (FRONTEND / "src").rglob("*") if path.is_file()]
    sources += [FRONTEND / name for name in ("index.html", "package-lock.json", "vite.config.ts")]
    if not index.exists() or max(path.stat().st_mtime for path in sources) > index.stat().st_mtime:
        run_npm("run", "build")
    return index.parent


@pytest.fixture(scope="session")
def axe(node_modules: Path) -> str:
    """The source of axe-core, which checks a page for what keeps people out."""
    return (node_modules / "axe-core" / "axe.min.js").read_text()


@pytest.fixture(scope="session")
def control_plane_process(
    django_db_setup: None, built_frontend: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlaneServer]:
    server = ControlPlaneServer(tmp_path_factory.mktemp("controlplane"), frontend_dist=built_frontend)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def control_plane(control_plane_process: ControlPlaneServer, transactional_db: None) -> ControlPlaneServer:
    return control_plane_process


@pytest.fixture
def operator(transactional_db: None) -> User:
    """Its password is hashed as the server's own settings do, not as the tests' cheap ones."""
    return User.objects.create(username="operator", password=Argon2PasswordHasher().encode(PASSWORD, "salt-of-tests"))


@pytest.fixture
def agent_token(transactional_db: None) -> str:
    _, secret = create_token(kind=TokenKind.AGENT, name="agents", actor="test", auto_approve=True)
    return secret


@pytest.fixture
async def browser(control_plane: ControlPlaneServer) -> AsyncIterator[Browser]:
    assert os.access(CHROMIUM, os.X_OK), "the page's tests need Chromium: apt-get install chromium"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture
async def page(browser: Browser, control_plane: ControlPlaneServer, operator: User) -> AsyncIterator[Page]:
    """A logged-in page, not opened yet. Fails its test on any script error or violation of the page's policy."""
    session_key = await stored(log_in, operator)
    context = await browser.new_context(viewport={"width": 1600, "height": 1100})
    await context.add_cookies([{"name": "sessionid", "value": session_key, "url": control_plane.http_url}])
    page = await context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if "Content Security Policy" in line.text else None)
    yield page
    await context.close()
    assert faults == []


async def stored(action: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Runs ORM work off the event loop's thread, and hands its connection back."""

    def run() -> T:
        try:
            return action(*args, **kwargs)
        finally:
            connection.close()

    return await asyncio.to_thread(run)


def new_turn_id() -> str:
    return str(uuid.uuid4())
