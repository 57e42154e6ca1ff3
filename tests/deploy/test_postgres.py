"""The embedded PostgreSQL, really started: loopback, password, UTF-8, and nothing lost at a stop."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from deploy.local import credentials, postgres
from deploy.local.console import StackError
from deploy.local.layout import Layout
from deploy.local.postgres import Identity, Postgres
from tests.deploy.conftest import free_port
from tests.deploy.processes import running, until


def make_server(layout: Layout, identity: Identity | None = None) -> Postgres:
    credentials.make_missing(layout.run)
    binaries = postgres.find_binaries(layout.main_venv)
    chosen = identity or postgres.choose_identity(layout, binaries)
    return Postgres(layout=layout, binaries=binaries, identity=chosen, port=free_port())


def ways_to_run(layout: Layout) -> Iterator[Identity]:
    """Every way that this user has here, not only the one that would be chosen."""
    binaries = postgres.find_binaries(layout.main_venv)
    yield postgres.choose_identity(layout, binaries)
    if os.geteuid() == 0:
        with suppress(StackError):  # a checkout below a private folder has one way only
            yield postgres.unprivileged_identity(layout, binaries)


async def until_accepting(server: Postgres) -> None:
    await until(lambda: postgres.is_accepting(server.binaries, server.port), "PostgreSQL accepts sessions")


async def test_committed_rows_survive_a_stop(layout: Layout) -> None:
    for identity in ways_to_run(layout):
        try:
            await check_that_rows_survive(make_server(layout, identity))
        finally:
            shutil.rmtree(identity.data.parent)


async def check_that_rows_survive(server: Postgres) -> None:
    assert server.initialise()
    with running(server.program()):
        await until_accepting(server)
        server.create_database()
        server.create_database()
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE kept (word text)")
            connection.execute("INSERT INTO kept VALUES ('grüße')")
    assert not server.initialise()
    with running(server.program()):
        await until_accepting(server)
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT word FROM kept").fetchall() == [("grüße",)]
            settings = "SHOW timezone", "SHOW server_encoding", "SHOW listen_addresses", "SHOW unix_socket_directories"
            values = [connection.execute(statement).fetchall()[0][0] for statement in settings]
            assert values == ["UTC", "UTF8", "127.0.0.1", ""]


async def test_wrong_password_is_refused(layout: Layout) -> None:
    server = make_server(layout)
    server.initialise()
    with running(server.program()):
        await until_accepting(server)
        wrong = f"postgresql://{postgres.USER}:wrong@127.0.0.1:{server.port}/postgres"
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)


def test_half_made_cluster_is_made_anew(layout: Layout) -> None:
    server = make_server(layout)
    server.identity.data.mkdir(parents=True)
    (server.identity.data / "PG_VERSION").write_text("18\n")
    assert server.initialise()
    assert (server.identity.data / "global" / "pg_control").exists()


def test_password_file_of_initdb_does_not_stay(layout: Layout) -> None:
    server = make_server(layout)
    server.initialise()
    password = credentials.read(layout.run / "postgres-password")
    holders = [
        path.name
        for path in layout.run.rglob("*")
        if path.is_file() and path.stat().st_size < 100_000 and password in path.read_text(errors="replace")
    ]
    assert holders == ["postgres-password"]


def test_ordinary_user_runs_it_directly(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    identity = postgres.choose_identity(layout, Path("/nowhere"))
    assert identity == Identity(prefix=(), data=layout.run / "postgres" / "data")


def test_root_without_any_way_out_is_told_what_to_do(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(postgres, "namespace_prefix", lambda: None)
    with pytest.raises(StackError, match="as an ordinary user, or set BACKHAUL_DATABASE_URL"):
        postgres.choose_identity(layout, layout.run)
