"""What the engine hands over while no agent listens or a slow one does: kept, bounded, aged, and never waited for."""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from connector.engine import link as link_module
from connector.engine.link import EngineLink
from connector.protocol import (
    Decision,
    Direction,
    EngineEvent,
    LeaseExtended,
    LeaseOffer,
    LeaseRenewed,
    LegDecided,
    Ping,
    Pong,
    Role,
    TransferOutcome,
    TransferRecorded,
)
from tests.connector.engine.link_engine import connected, ended, offer_of


def test_events_are_kept_while_no_agent_is_there_and_follow_the_leases(link: EngineLink, path: Path) -> None:
    with connected(path):
        pass
    link.send(ended("a"))
    link.send(ended("b"))
    with connected(path) as client:
        assert [client.receive(EngineEvent).event for _ in range(2)] == [ended("a").event, ended("b").event]


def test_the_outbox_is_bounded_drops_the_oldest_and_counts(
    link: EngineLink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_PENDING_MESSAGES", 3)
    for name in "abcde":
        link.send(ended(name))
    with connected(path) as client:
        kept = [client.receive(EngineEvent).event for _ in range(3)]
        assert kept == [ended(name).event for name in "cde"]
        client.send(Ping(nonce=1))
        assert client.receive(Pong).load.num_dropped_events == 2


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """Replaces the link's clock alone; locks and sockets keep the real one."""
    manual = ManualClock()
    monkeypatch.setattr(link_module, "time", SimpleNamespace(monotonic=manual.monotonic))
    return manual


def test_events_are_aged_when_they_are_sent(link: EngineLink, path: Path, clock: ManualClock) -> None:
    leg = LegDecided(turn_id="t", session_id="s", leg=Role.PREFILL, decision=Decision.PULLED, num_prompt_tokens=9)
    transfer = TransferRecorded(
        transfer_id="x",
        direction=Direction.DECODE_TO_PREFILL,
        source_engine="d-0",
        target_engine="p-0",
        session_id="s",
        turn_id="t",
        lease_id="l",
        num_tokens=64,
        num_blocks=2,
        num_bytes=100,
        post_ms=1.0,
        duration_ms=8.0,
        start_age_ms=10.0,
        outcome=TransferOutcome.COMPLETED,
    )
    link.send(EngineEvent(age_ms=1.0, event=leg))
    clock.now += 2.0
    link.send(EngineEvent(age_ms=0.0, event=transfer))
    clock.now += 3.0
    with connected(path) as client:
        first, second = client.receive(EngineEvent), client.receive(EngineEvent)
    assert (first.age_ms, first.event) == (5001.0, leg)
    assert second.age_ms == 3000.0
    assert isinstance(second.event, TransferRecorded)
    assert (second.event.start_age_ms, second.event.duration_ms) == (3010.0, 8.0)


def test_remaining_times_have_run_on_while_a_message_waited(link: EngineLink, path: Path, clock: ManualClock) -> None:
    """Sent after the hello's fresh leases, a stale remaining time would stretch what the agent already knows."""
    granted = offer_of("lease-c", remaining_seconds=480.0)
    link.send(granted)
    for remaining in (100.0, 20.0):
        extended = LeaseExtended(lease_id="lease-c", remaining_seconds=remaining)
        link.send(LeaseRenewed(lease=extended, offer="renewed"))
    clock.now += 30.0
    with connected(path) as client:
        offered = client.receive(LeaseOffer)
        renewed = [client.receive(LeaseRenewed) for _ in range(2)]
    assert offered.lease.remaining_seconds == pytest.approx(granted.lease.remaining_seconds - 30.0)
    assert offered.offer == "token"
    assert [message.lease.remaining_seconds for message in renewed] == [70.0, 0.0]
    assert renewed[0].offer == "renewed"


# ---------------------------------------------------------------- a slow agent

BULKY = "x" * 500_000


def test_sending_never_waits_for_a_slow_agent(link: EngineLink, path: Path) -> None:
    """The engine's thread hands over 50 MB, of which the agent reads nothing; a blocked send would sit here."""
    with connected(path):
        start = time.monotonic()
        for index in range(100):
            link.send(offer_of(f"lease-{index}", offer=BULKY))
        assert time.monotonic() - start < link_module.SEND_TIMEOUT_SECONDS


def test_an_agent_that_takes_nothing_is_disconnected_and_resynchronises(
    link: EngineLink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "SEND_TIMEOUT_SECONDS", 0.2)
    with connected(path) as slow:
        for index in range(10):
            link.send(offer_of(f"lease-{index}", offer=BULKY))
        slow.wait_until_closed()
    with connected(path) as client:
        received = [client.receive(LeaseOffer).lease.lease_id]
        while received[-1] != "lease-9":
            received.append(client.receive(LeaseOffer).lease.lease_id)
    assert received == [f"lease-{index}" for index in range(10 - len(received), 10)]
