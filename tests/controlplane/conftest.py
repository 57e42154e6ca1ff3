"""Every test here runs on a real Postgres and a real Valkey: those of the environment, or throw-away ones."""

from collections.abc import Iterator

import pytest
from django.conf import settings

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
