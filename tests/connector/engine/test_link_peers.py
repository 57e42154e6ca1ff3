"""Peers and the first policy over the link, and the tick that needs no agent."""

import threading
from pathlib import Path

import pytest
from msgspec import structs

from connector.engine import link as link_module
from connector.engine.link import EngineLink
from connector.engine.peers import PeerBook
from connector.protocol import Peer, Ping, PolicyApplied, PolicyValues, Pong, SetPeers, SetPolicy
from tests.connector.engine.link_client import LinkClient
from tests.connector.engine.link_engine import FakeEngine, connected

DEADLINE_SECONDS = 10.0
SOME = SetPeers(peers=(Peer(name="d-1", incarnation="boot-1"),))


def settled(client: LinkClient) -> None:
    """The link's thread has done all that was asked of it before."""
    client.send(Ping(nonce=1))
    client.receive(Pong)


def test_peers_are_known_without_a_step_and_the_link_goes_on(engine: FakeEngine, path: Path) -> None:
    book = PeerBook()
    link = EngineLink(path, structs.replace(engine.callbacks(), set_peers=book.set))
    with connected(path) as client:
        client.send(SOME)
        settled(client)
    assert book.reason_against("d-1", "boot-1") == ""
    assert book.reason_against("d-2", "boot-1") == "unknown_engine"
    link.close()


def test_a_list_beyond_the_bound_costs_the_connection_and_not_the_list(engine: FakeEngine, path: Path) -> None:
    book = PeerBook()
    book.set(SOME)
    link = EngineLink(path, structs.replace(engine.callbacks(), set_peers=book.set))
    with connected(path) as client:
        client.send(SetPeers(peers=tuple(Peer(name=f"d-{n}") for n in range(1025))))
        client.wait_until_closed()
    assert book.reason_against("d-2", "") == "unknown_engine"
    link.close()


def test_the_first_policy_ends_the_wait_and_is_in_force_by_then(
    link: EngineLink, path: Path, engine: FakeEngine
) -> None:
    found: list[tuple[bool, int]] = []
    waiter = threading.Thread(
        target=lambda: found.append((link.wait_for_policy(DEADLINE_SECONDS), engine.policy.revision))
    )
    waiter.start()
    with connected(path) as client:
        settled(client)
        assert found == []
        client.send(SetPolicy(revision=4, values=PolicyValues()))
        client.receive(PolicyApplied)
    waiter.join(DEADLINE_SECONDS)
    assert found == [(True, 4)]


def test_the_wait_for_a_policy_is_bounded(link: EngineLink) -> None:
    assert not link.wait_for_policy(0.01)


def test_the_engine_ticks_without_an_agent_and_a_fault_does_not_stop_it(
    engine: FakeEngine, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_module, "TICK_SECONDS", 0.01)
    ticks = threading.Semaphore(0)

    def tick() -> None:
        ticks.release()
        raise RuntimeError("no key file")

    link = EngineLink(path, structs.replace(engine.callbacks(), tick=tick))
    for _ in range(3):
        assert ticks.acquire(timeout=DEADLINE_SECONDS)
    link.close()
    assert "The link's tick failed" in caplog.text
