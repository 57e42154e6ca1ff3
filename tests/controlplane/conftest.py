"""Every test here runs on a real Postgres and a real Valkey: those of the environment, or throw-away ones."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
from django.conf import settings
from rest_framework.test import APIClient

from controlplane.accounts.actions import create_token
from controlplane.accounts.models import TokenKind
from tests.controlplane.services import Services


@pytest.fixture(scope="session", autouse=True)
def services() -> Iterator[None]:
    """Servers run before the first test and stop after the last."""
    if not settings.HAS_THROWAWAY_SERVERS:
        yield
        return
    servers = Services(settings.THROWAWAY_FOLDER)
    try:
        servers.start(
            postgres_port=settings.POSTGRES_PORT,
            password=settings.THROWAWAY_PASSWORD,
            redis_port=settings.REDIS_PORT,
        )
        yield
    finally:
        servers.stop()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(services: None) -> None:
    """pytest-django makes its test database after this, so the server is up by then."""


@pytest.fixture
async def server_url(transactional_db: None) -> AsyncIterator[str]:
    """The whole ASGI application on an ephemeral port, in the test's own loop: ``http://127.0.0.1:<port>``."""
    server = uvicorn.Server(uvicorn.Config("controlplane.asgi:application", port=0, lifespan="off", log_config=None))
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(10):
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await serving


@pytest.fixture
def admin_secret(db: None) -> str:
    return create_token(kind=TokenKind.ADMIN, name="test-admin", actor="test")[1]


@pytest.fixture
def api(admin_secret: str) -> APIClient:
    """REST as an operator's script uses it."""
    return APIClient(headers={"Authorization": f"Bearer {admin_secret}"})


@pytest.fixture
def agent_secret(transactional_db: None) -> str:
    return create_token(kind=TokenKind.AGENT, name="agents", actor="test", auto_approve=True)[1]


@pytest.fixture
def router_secret(transactional_db: None) -> str:
    return create_token(kind=TokenKind.ROUTER, name="routers", actor="test")[1]
