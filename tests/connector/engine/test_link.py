"""The engine link over a real unix socket: connections, policy and commands, with no scheduler step."""

import socket
import stat
from pathlib import Path

import pytest
from msgspec import structs

from connector.engine import guards
from connector.engine import link as link_module
from connector.engine.link import EngineLink
from connector.protocol import (
    CommandDone,
    EngineEvent,
    EngineHello,
    ExtendLease,
    LeaseOffer,
    Ping,
    PolicyApplied,
    PolicyValues,
    Pong,
    ReleaseLease,
    SetPolicy,
)
from tests.connector.engine.link_client import LinkClient
from tests.connector.engine.link_engine import FakeEngine, connected, ended


def test_a_connection_starts_with_hello_and_every_held_lease(link: EngineLink, path: Path, engine: FakeEngine) -> None:
    engine.policy.set(7, PolicyValues(kv_recompute_threshold=99))
    with LinkClient(path) as client:
        hello = client.receive(EngineHello)
        assert (hello.engine.name, hello.num_leases) == ("d-0", 2)
        assert (hello.policy.revision, hello.policy.values.kv_recompute_threshold) == (7, 99)
        assert [client.receive(LeaseOffer).lease.lease_id for _ in range(2)] == ["lease-a", "lease-b"]


def test_only_the_owner_may_connect(link: EngineLink, path: Path) -> None:
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_newer_connection_replaces_the_older_one(link: EngineLink, path: Path) -> None:
    with connected(path) as older, connected(path) as newer:
        assert older.read_to_end() == []
        link.send(ended("a"))
        assert newer.receive(EngineEvent).event == ended("a").event


def test_a_new_agent_is_served_after_the_old_one_left(link: EngineLink, path: Path) -> None:
    for nonce in range(3):
        with connected(path) as client:
            client.send(Ping(nonce=nonce))
            assert client.receive(Pong).nonce == nonce


def test_closing_ends_the_connection_and_removes_the_socket(engine: FakeEngine, path: Path) -> None:
    link = EngineLink(path, engine.callbacks())
    with connected(path) as client:
        link.close()
        assert client.read_to_end() == []
    assert not path.exists()


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\x00\x00\x00\x01\xc1", id="not msgpack"),
        pytest.param(b"\xff\xff\xff\xff", id="oversize"),
        pytest.param(b"\x00\x00\x00\x00", id="empty"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
    ],
)
def test_garbage_closes_that_connection_only(link: EngineLink, path: Path, frame: bytes) -> None:
    with connected(path) as client:
        client.send_bytes(frame)
        assert client.read_to_end() == []
    with connected(path) as client:
        client.send(Ping(nonce=1))
        assert client.receive(Pong).nonce == 1


def test_a_fault_of_the_engine_costs_one_connection_and_not_the_link(
    path: Path, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [RuntimeError("a fault")]
    num_before = guards.num_contained["link"]

    def hello() -> EngineHello:
        if faults:
            raise faults.pop()
        return engine.hello()

    link = EngineLink(path, structs.replace(engine.callbacks(), hello=hello))
    with LinkClient(path) as client:
        assert client.read_to_end() == []
    with connected(path):
        pass
    link.close()
    assert "a fault" in caplog.text
    assert guards.num_contained["link"] == num_before + 1


def test_a_connection_that_fails_while_it_is_accepted_costs_only_itself(
    path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = EngineLink(path, engine.callbacks())
    with monkeypatch.context() as faults:
        faults.setattr("connector.engine.link.FrameDecoder", lambda *_: 1 / 0)
        with LinkClient(path) as client:
            assert client.read_to_end() == []
    with connected(path):
        pass
    link.close()


def test_a_path_of_a_live_engine_is_refused(link: EngineLink, path: Path, engine: FakeEngine) -> None:
    with pytest.raises(RuntimeError, match="another engine listens on"):
        EngineLink(path, engine.callbacks())
    with connected(path) as client:
        client.send(Ping(nonce=1))
        assert client.receive(Pong).nonce == 1


def test_a_socket_left_by_a_dead_engine_is_replaced(engine: FakeEngine, path: Path) -> None:
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    link = EngineLink(path, engine.callbacks())
    with connected(path):
        pass
    link.close()


def test_a_file_that_is_no_socket_is_left_alone(engine: FakeEngine, path: Path) -> None:
    path.parent.mkdir()
    path.write_text("precious")
    with pytest.raises(RuntimeError, match="is not a socket"):
        EngineLink(path, engine.callbacks())
    assert path.read_text() == "precious"


# ---------------------------------------------------------------- policy and commands


def test_policy_is_applied_and_read_back_without_a_step(link: EngineLink, path: Path, engine: FakeEngine) -> None:
    values = PolicyValues(kv_recompute_threshold=128, release_on_read=True)
    with connected(path) as client:
        client.send(SetPolicy(revision=4, values=values))
        applied = client.receive(PolicyApplied)
    assert (applied.revision, applied.values) == (4, values)
    assert (engine.policy.revision, engine.policy.values) == (4, values)


@pytest.mark.parametrize(
    "command",
    [
        ReleaseLease(command_id="c1", key="lease-gone"),
        ReleaseLease(command_id="c1", key="req-gone"),
        ExtendLease(command_id="c1", lease_id="lease-gone", ttl_seconds=60),
    ],
)
def test_an_unknown_lease_is_answered_without_a_step(
    link: EngineLink, path: Path, command: ReleaseLease | ExtendLease
) -> None:
    with connected(path) as client:
        client.send(command)
        assert client.receive(CommandDone) == CommandDone(command_id="c1", outcome="not_found")
    assert list(link.take_commands()) == []


def test_commands_for_held_leases_wait_for_the_scheduler_in_order(link: EngineLink, path: Path) -> None:
    commands = [
        ReleaseLease(command_id="c1", key="lease-a"),
        ExtendLease(command_id="c2", lease_id="lease-b", ttl_seconds=60, pinned=True),
        ReleaseLease(command_id="c3", key="req-b"),
    ]
    with connected(path) as client:
        for command in commands:
            client.send(command)
        client.send(Ping(nonce=1))
        client.receive(Pong)  # and no CommandDone before it
    assert list(link.take_commands()) == commands
    assert list(link.take_commands()) == []


def test_a_full_inbox_answers_failed(link: EngineLink, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_PENDING_COMMANDS", 1)
    with connected(path) as client:
        client.send(ReleaseLease(command_id="c1", key="lease-a"))
        client.send(ReleaseLease(command_id="c2", key="lease-a"))
        assert client.receive(CommandDone) == CommandDone(command_id="c2", outcome="failed", detail="inbox full")
    assert [command.command_id for command in link.take_commands()] == ["c1"]
