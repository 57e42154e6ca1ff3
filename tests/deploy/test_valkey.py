"""The embedded Valkey, really started: loopback, password, and nothing lost at a stop."""

import pytest
import redis

from deploy.local import credentials, valkey
from deploy.local.layout import Layout
from deploy.local.valkey import Valkey
from tests.deploy.conftest import free_port
from tests.deploy.processes import running, until


def make_server(layout: Layout) -> Valkey:
    credentials.make_missing(layout.run)
    server = Valkey(layout=layout, binary=valkey.find_binary(layout.main_venv), port=free_port())
    server.configure()
    return server


async def until_answering(server: Valkey, layout: Layout) -> None:
    password = credentials.read(layout.run / "valkey-password")
    await until(lambda: valkey.is_answering(server.port, password), "Valkey answers")


async def test_keys_survive_a_stop(layout: Layout) -> None:
    server = make_server(layout)
    with running(server.program()):
        await until_answering(server, layout)
        with redis.Redis.from_url(server.url) as client:
            client.set("kept", "yes")
    with running(server.program()):
        await until_answering(server, layout)
        with redis.Redis.from_url(server.url) as client:
            assert client.get("kept") == b"yes"


async def test_wrong_password_does_not_count_as_an_answer(layout: Layout) -> None:
    server = make_server(layout)
    with running(server.program()):
        await until_answering(server, layout)
        assert not valkey.is_answering(server.port, "wrong")


def test_nothing_listening_is_no_answer() -> None:
    assert not valkey.is_answering(free_port(), "any")


def test_password_shows_in_no_command(layout: Layout) -> None:
    server = make_server(layout)
    password = credentials.read(layout.run / "valkey-password")
    assert not [part for part in server.program().command if password in str(part)]
    assert (layout.run / "valkey" / "valkey.conf").stat().st_mode & 0o077 == 0


async def test_routers_may_write_and_read_their_claims_and_nothing_else(layout: Layout) -> None:
    server = make_server(layout)
    with running(server.program()):
        await until_answering(server, layout)
        with redis.Redis.from_url(server.router_url, protocol=2) as client:
            client.xadd("backhaul:claims", {"by": "x"}, maxlen=10)
            assert client.xread({"backhaul:claims": "0"})
            assert client.pexpire("backhaul:claims", 60_000)
            assert client.time()
            refused = (
                lambda: client.xadd("celery", {"by": "x"}),
                lambda: client.get("backhaul:claims"),
                client.keys,
                lambda: client.publish("backhaul", "x"),
                client.flushall,
                lambda: client.config_get("requirepass"),
            )
            for command in refused:
                with pytest.raises(redis.exceptions.NoPermissionError):
                    command()


def test_changed_configuration_is_another_program(layout: Layout) -> None:
    server = make_server(layout)
    before = server.program()
    server.configure()
    assert server.program() == before
    (layout.run / "valkey-router-password").write_text("another\n")
    server.configure()
    assert server.program() != before
