"""Embedded servers unless the operator has some; their ports pass over taken ones and stay while the server runs."""

import socket
from dataclasses import replace

import pytest

from deploy.local import credentials, databases
from deploy.local.console import StackError
from deploy.local.environment import Options
from tests.deploy.conftest import free_port


def test_servers_of_the_operator_are_used_as_they_are(options: Options) -> None:
    options.layout.create()
    given = replace(options, database_url="postgresql://u:p@db/x", redis_url="redis://cache/0")
    stores = databases.prepare(given, frozenset())
    assert (stores.database_url, stores.redis_url) == ("postgresql://u:p@db/x", "redis://cache/0")
    assert stores.router_redis_url == "redis://cache/0"
    assert list(stores.programs()) == []
    assert not (options.layout.run / "postgres").exists()


def test_valkey_alone_may_be_embedded(options: Options) -> None:
    options.layout.create()
    credentials.make_missing(options.layout.run)
    stores = databases.prepare(replace(options, database_url="postgresql://u:p@db/x"), frozenset())
    assert [program.name for program in stores.programs()] == ["valkey"]
    assert stores.redis_url.startswith("redis://:")
    assert stores.router_redis_url.startswith("redis://router:")


def test_taken_port_is_passed_over(options: Options) -> None:
    options.layout.create()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        taken = server.getsockname()[1]
        assert databases.own_port(options, "valkey", taken, is_running=False) > taken


def test_running_server_keeps_its_port(options: Options) -> None:
    options.layout.create()
    first = databases.own_port(options, "valkey", free_port(), is_running=False)
    assert databases.own_port(options, "valkey", 1024, is_running=True) == first


def test_no_free_port_names_the_variable(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    options.layout.create()
    monkeypatch.setattr(databases.machine, "is_port_free", lambda port: False)
    with pytest.raises(StackError, match="set BACKHAUL_VALKEY_PORT"):
        databases.own_port(options, "valkey", 16379, is_running=False)
