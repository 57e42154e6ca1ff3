"""Policy per lease: what a session has set for itself stands, what the engine sets holds at once for all others."""

from typing import Any

import pytest

from connector.protocol import ExtendLease, LeaseState, PolicyPatch, Role
from tests.connector.engine.builders import an_envelope
from tests.contract.lease_bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def kept_and_unkept(bench: Bench) -> tuple[list[str], list[str]]:
    orders = bench.orders()
    return orders.kept_requests, orders.unkept_requests


# ---------------------------------------------------------------- reads that free, or don't


def test_a_session_that_frees_on_read_is_never_kept(bench: Bench) -> None:
    bench.grant("once", [1], policy=PolicyPatch(release_on_read=True))
    bench.grant("kept", [2])
    assert kept_and_unkept(bench) == (["req-kept"], [])


def test_an_engines_release_on_read_holds_at_once_and_is_taken_back(bench: Bench) -> None:
    bench.grant("a", [1])
    bench.grant("own", [2], policy=PolicyPatch(release_on_read=False))
    bench.orders()
    bench.publish(release_on_read=True)
    assert kept_and_unkept(bench) == ([], ["req-a"])
    bench.publish(release_on_read=False)
    assert kept_and_unkept(bench) == (["req-a"], [])
    assert bench.released() == []


def test_a_change_and_back_between_two_steps_orders_the_last_word(bench: Bench) -> None:
    bench.grant("a", [1])
    bench.publish(release_on_read=True)
    assert kept_and_unkept(bench) == ([], ["req-a"])
    bench.publish(release_on_read=False)
    bench.publish(release_on_read=True)
    bench.publish(release_on_read=False)
    assert kept_and_unkept(bench) == (["req-a"], [])


def test_reads_that_were_seen_before_count(bench: Bench) -> None:
    bench.grant("read", [1])
    bench.grant("unread", [2])
    bench.grant("own", [3], policy=PolicyPatch(release_on_read=False))
    bench.control.note_reads(["req-read", "req-own"])
    bench.publish(release_on_read=True)
    assert bench.released() == ["read"]
    assert bench.ends() == [("read", LeaseState.RELEASED, "read")]


def test_a_pin_outranks_release_on_read_until_it_is_taken_off(bench: Bench) -> None:
    bench.grant("a", [1])
    bench.control.note_reads(["req-a"])
    bench.command(ExtendLease(command_id="c1", lease_id="lease-a", ttl_seconds=60, pinned=True))
    bench.publish(release_on_read=True)
    assert bench.released() == []
    bench.command(ExtendLease(command_id="c2", lease_id="lease-a", ttl_seconds=60))
    assert bench.released() == ["a"]


# ---------------------------------------------------------------- reuse and TTL


def test_a_sessions_own_reuse_outlives_the_engines(bench: Bench) -> None:
    bench.grant("own", [1], policy=PolicyPatch(bidirectional_kv_xfer=True))
    bench.grant("other", [2], policy=PolicyPatch(decoder_kv_blocks_ttl=60))
    bench.publish(bidirectional_kv_xfer=False)
    assert bench.released() == ["other"]
    bench.publish(bidirectional_kv_xfer=False, kv_recompute_threshold=7)
    assert bench.released() == []


def adopt(bench: Bench, session: str, tenant: str = "default", **own: Any) -> None:
    policy = PolicyPatch(**own) if own else None
    bench.control.adopt(an_envelope(leg=Role.DECODE, session_id=session, tenant=tenant, policy=policy))


def test_a_sessions_newest_policy_holds_for_what_it_holds_already(bench: Bench) -> None:
    bench.grant("a", [1], session_id="s", age_seconds=10)
    bench.grant("b", [2], session_id="other", age_seconds=10)
    bench.orders()
    adopt(bench, "s", decoder_kv_blocks_ttl=60)
    assert bench.orders().deadlines == {"req-a": pytest.approx(50, abs=1)}
    adopt(bench, "s", decoder_kv_blocks_ttl=60)
    assert bench.orders().deadlines == {}, "the same again moves nothing"
    adopt(bench, "s", decoder_kv_blocks_ttl=60, release_on_read=True)
    assert kept_and_unkept(bench) == ([], ["req-a"])
    adopt(bench, "s", bidirectional_kv_xfer=False)
    assert bench.released() == ["a"]
    assert bench.ends() == [("a", LeaseState.RELEASED, "policy")]


def test_a_session_that_takes_its_own_policy_back_is_under_the_engines_again(bench: Bench) -> None:
    bench.grant("a", [1], session_id="s", policy=PolicyPatch(decoder_kv_blocks_ttl=60), age_seconds=10)
    adopt(bench, "s")
    assert bench.orders().deadlines == {"req-a": pytest.approx(470, abs=1)}
    bench.publish(decoder_kv_blocks_ttl=100)
    assert bench.orders().deadlines == {"req-a": pytest.approx(90, abs=1)}


def test_no_other_tenant_moves_a_sessions_lease(bench: Bench) -> None:
    bench.grant("a", [1], session_id="s")
    adopt(bench, "s", tenant="evil", bidirectional_kv_xfer=False)
    assert bench.released() == []


def test_an_operators_extension_stays_while_no_ttl_changes(bench: Bench) -> None:
    bench.grant("a", [1], session_id="s")
    bench.command(ExtendLease(command_id="c1", lease_id="lease-a", ttl_seconds=900))
    bench.orders()
    adopt(bench, "s")
    bench.publish(kv_recompute_threshold=9)
    assert bench.orders().deadlines == {}


# ---------------------------------------------------------------- who goes first


def test_what_came_back_before_is_kept_and_what_never_does_goes(bench: Bench) -> None:
    """The engine has seen that sessions return within seconds or not at all."""
    for _ in range(200):
        bench.control.room.odds.observe(2.0, returned=True)
        bench.control.room.odds.observe(480.0, returned=False)
    bench.grant("long-idle", [1, 2, 3, 4], age_seconds=200)
    bench.grant("fresh", [5, 6])
    bench.num_free = 3
    bench.step()
    assert bench.released() == ["long-idle"]


def test_reads_and_next_turns_teach_and_expiries_too(bench: Bench) -> None:
    before = bench.control.room.odds.curve().chance(1, 400)
    for number in range(20):
        bench.grant(f"read-{number}", [number % 19], age_seconds=300)
        bench.control.note_reads([f"req-read-{number}"])
        bench.control.note_expired([f"req-read-{number}"])
        bench.control.ended(f"req-read-{number}")
    after = bench.control.room.odds.curve().chance(200, 200)
    assert after > 0.5
    assert bench.control.room.odds.curve().chance(1, 400) != before


def test_a_request_that_still_waits_though_its_blocks_are_free_gets_a_few_more(bench: Bench) -> None:
    """vLLM reserves blocks for others that we can't see."""
    bench.grant("a", [1, 2], age_seconds=9)
    bench.grant("b", [3, 4], age_seconds=5)
    bench.make_room(39)
    assert bench.released() == []
    bench.make_room(39)
    assert bench.released() == ["a", "b"]
    bench.make_room(39, request_id="another")
    assert bench.released() == []


def test_vllm_is_told_to_wait_only_while_blocks_are_on_their_way(bench: Bench) -> None:
    assert bench.control.room.relieve() is False
    bench.grant("a", [1, 2])
    assert bench.control.room.relieve() is True
    assert bench.released() == ["a"]
    assert bench.control.room.relieve() is False
