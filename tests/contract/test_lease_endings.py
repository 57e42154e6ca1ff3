"""What changes or ends a lease: commands, policy, time and reads; reported once, for one reason, after the workers."""

import time
from typing import Any

import pytest

from connector.engine.lease_control import PINNED_SECONDS
from connector.engine.offers import KvOffer
from connector.protocol import (
    ExtendLease,
    LeaseKind,
    LeaseRenewed,
    LeaseState,
    PolicyPatch,
    ReleaseLease,
)
from tests.connector.engine.builders import FLEET_KEY
from tests.contract.lease_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("key", ["lease-a", "req-a", "turn-a"])
def test_a_release_is_obeyed_and_reported_once_the_workers_let_go(bench: Bench, key: str) -> None:
    bench.grant("a", [1])
    assert bench.command(ReleaseLease(command_id="c1", key=key, reason="operator")) == "released"
    assert (bench.ends(), bench.control.table.num_ending) == ([], 1)
    assert bench.released() == ["a"]
    assert bench.ends() == [("a", LeaseState.RELEASED, "operator")]


def test_releasing_again_changes_nothing(bench: Bench) -> None:
    bench.grant("a", [1])
    bench.command(ReleaseLease(command_id="c1", key="lease-a", reason="first"))
    assert bench.command(ReleaseLease(command_id="c2", key="lease-a", reason="second")) == "released"
    assert bench.released() == ["a"]
    assert bench.ends() == [("a", LeaseState.RELEASED, "first")]
    assert bench.command(ReleaseLease(command_id="c3", key="lease-a")) == "not_found"


def test_an_extension_moves_the_deadline_everywhere(bench: Bench) -> None:
    lease = bench.grant("a", [1], age_seconds=400)
    assert bench.command(ExtendLease(command_id="c1", lease_id="lease-a", ttl_seconds=900)) == "extended"
    assert bench.orders().deadlines == {"req-a": 900}
    renewed = bench.reporter.sent[-2]
    assert isinstance(renewed, LeaseRenewed)
    assert not renewed.lease.pinned
    assert renewed.lease.remaining_seconds == pytest.approx(900, abs=1)
    offer = FLEET_KEY.verify("offer", renewed.offer, KvOffer)
    assert offer.expires_at_source == pytest.approx(time.perf_counter() + 900, abs=1)
    assert lease.renewed_at == pytest.approx(time.perf_counter(), abs=1)


def test_a_pin_stops_the_clock_until_the_next_extension(bench: Bench) -> None:
    lease = bench.grant("a", [1])
    assert bench.command(ExtendLease(command_id="c1", lease_id="lease-a", ttl_seconds=60, pinned=True)) == "pinned"
    assert (lease.pinned, bench.orders().deadlines) == (True, {"req-a": PINNED_SECONDS})
    assert bench.command(ExtendLease(command_id="c2", lease_id="lease-a", ttl_seconds=60)) == "extended"
    assert (lease.pinned, bench.orders().deadlines) == (False, {"req-a": 60})


def test_a_lease_that_is_ending_can_not_be_extended(bench: Bench) -> None:
    lease = bench.grant("a", [1])
    bench.control.release(lease, LeaseState.RELEASED, "command")
    assert bench.command(ExtendLease(command_id="c1", lease_id="lease-a", ttl_seconds=900)) == "not_found"
    assert bench.orders().deadlines == {}


def test_an_unknown_lease_is_not_found(bench: Bench) -> None:
    assert bench.command(ReleaseLease(command_id="c1", key="lease-x")) == "not_found"
    assert bench.command(ExtendLease(command_id="c2", lease_id="lease-x", ttl_seconds=9)) == "not_found"


# ---------------------------------------------------------------- policy


@pytest.mark.parametrize(("ttl", "remaining"), [(60, 30), (900, 870), (20, 0)])
def test_a_new_ttl_counts_from_the_last_renewal(bench: Bench, ttl: int, remaining: float) -> None:
    lease = bench.grant("a", [1], age_seconds=30)
    bench.publish(decoder_kv_blocks_ttl=ttl)
    assert bench.orders().deadlines == {"req-a": pytest.approx(remaining, abs=1)}
    renewed = bench.reporter.sent[-1]
    assert isinstance(renewed, LeaseRenewed)
    assert renewed.lease.remaining_seconds == pytest.approx(remaining, abs=1)
    assert time.perf_counter() - lease.renewed_at == pytest.approx(30, abs=1)


@pytest.mark.parametrize(
    "changes", [{"pinned": True}, {"policy": PolicyPatch(decoder_kv_blocks_ttl=60)}, {"kind": LeaseKind.HANDOFF}]
)
def test_a_new_ttl_leaves_alone_what_it_does_not_govern(bench: Bench, changes: dict[str, Any]) -> None:
    bench.grant("a", [1], **changes)
    bench.publish(decoder_kv_blocks_ttl=60)
    assert bench.orders().deadlines == {}


def test_another_field_moves_no_deadline(bench: Bench) -> None:
    bench.grant("a", [1], age_seconds=30)
    bench.publish(kv_recompute_threshold=999)
    assert (bench.orders().deadlines, bench.released()) == ({}, [])


@pytest.mark.parametrize("policy", [{"decoder_kv_blocks_ttl": 0}, {"bidirectional_kv_xfer": False}])
def test_no_ttl_or_no_reuse_releases_the_unpinned_only(bench: Bench, policy: dict[str, Any]) -> None:
    bench.grant("a", [1])
    bench.grant("pinned", [2], pinned=True)
    bench.grant("handoff", [3], kind=LeaseKind.HANDOFF)
    bench.publish(**policy)
    assert bench.released() == ["a"]
    assert bench.ends() == [("a", LeaseState.RELEASED, "policy")]


def test_a_sessions_own_ttl_is_narrower_than_an_engines_ttl_of_zero() -> None:
    """Else each reconnect of the agent, which sends the policy again, would end what that policy granted."""
    bench = Bench(decoder_kv_blocks_ttl=0)
    bench.grant("a", [1], policy=PolicyPatch(decoder_kv_blocks_ttl=60))
    bench.publish(decoder_kv_blocks_ttl=0)
    assert bench.released() == []
    bench.publish(decoder_kv_blocks_ttl=0, bidirectional_kv_xfer=False)
    assert bench.released() == ["a"]


def test_the_same_policy_again_changes_nothing(bench: Bench) -> None:
    """An agent sends the policy at every reconnect."""
    bench.grant("a", [1], age_seconds=30)
    bench.publish()
    assert (bench.orders().deadlines, bench.orders().releases) == ({}, [])


# ---------------------------------------------------------------- the end of a lease


def test_an_expiry_is_told_from_a_read(bench: Bench) -> None:
    bench.grant("expired", [1])
    bench.grant("read", [2])
    bench.control.note_expired(["req-expired"])
    bench.control.ended("req-expired")
    bench.control.ended("req-read")
    assert bench.ends() == [("expired", LeaseState.EXPIRED, "ttl"), ("read", LeaseState.RELEASED, "read")]


@pytest.mark.parametrize("reason", ["command", "policy", "pressure", "pinned_kv_limit"])
def test_a_release_is_never_reported_as_an_expiry(bench: Bench, reason: str) -> None:
    """The TTL may run out between the order and the workers' answer."""
    lease = bench.grant("a", [1])
    bench.control.release(lease, LeaseState.RELEASED, reason)
    bench.control.note_expired(["req-a"])
    bench.control.ended("req-a")
    assert bench.ends() == [("a", LeaseState.RELEASED, reason)]


def test_an_expiry_seen_by_one_rank_before_the_last_one_lets_go_is_remembered(bench: Bench) -> None:
    bench.grant("a", [1])
    bench.control.note_expired(["req-a"])
    bench.orders()
    bench.control.ended("req-a")
    assert bench.ends() == [("a", LeaseState.EXPIRED, "ttl")]


def test_a_request_id_used_again_does_not_inherit_an_expiry(bench: Bench) -> None:
    bench.control.note_expired(["req-a"])
    bench.control.ended("req-a")  # a stock peer's blocks, under no lease of ours
    bench.grant("a", [1])
    bench.control.ended("req-a")
    assert bench.ends() == [("a", LeaseState.RELEASED, "read")]


def test_an_end_is_reported_once_with_its_reads(bench: Bench) -> None:
    bench.grant("a", [1])
    bench.control.note_reads(["req-a", "req-a", "req-unknown"])
    bench.control.note_reads(["req-a"])
    bench.control.ended("req-a")
    bench.control.ended("req-a")
    (event,) = bench.reporter.events
    assert event.num_reads == 3


def test_ending_leases_are_not_offered_to_a_new_agent(bench: Bench) -> None:
    lease = bench.grant("a", [1])
    bench.grant("b", [2])
    bench.grant("handoff", [3], kind=LeaseKind.HANDOFF)
    bench.control.release(lease, LeaseState.RELEASED, "command")
    assert [offer.lease.lease_id for offer in bench.control.held_offers()] == ["lease-b"]
