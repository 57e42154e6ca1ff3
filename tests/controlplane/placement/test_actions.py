"""Sessions, turns and placements follow the events on a real Postgres."""

import uuid
from datetime import datetime, timedelta

import pytest

from connector.protocol import Decision, Event, LeaseKind, LeaseState, Role
from controlplane.fleet.models import Engine
from controlplane.placement import actions
from controlplane.placement.bounds import RefusedEventError
from controlplane.placement.facts import Dated
from controlplane.placement.models import Placement, Session, Turn
from tests.controlplane.placement.events import (
    NOON,
    SESSION_ID,
    TRACE_ID,
    TURN_ID,
    after,
    decided,
    ended,
    extended,
    granted,
    recorded,
)

pytestmark = pytest.mark.django_db


def send(event: Event, at: datetime = NOON, *, engine: str = "d0", incarnation: str = "i1") -> None:
    actions.apply_event(event, engine_name=engine, incarnation=incarnation, occurred_at=at)


def placement(lease_id: str = "lease-1") -> Placement:
    return Placement.objects.get(id=lease_id)


def test_whole_turn_is_one_session_turn_and_placement() -> None:
    send(decided(), engine="p0")
    send(decided(Role.DECODE, num_pulled_tokens=700), after(0.1))
    send(granted(), after(1.4))
    send(recorded(), after(1.5), engine="")
    session, turn, lease = Session.objects.get(), Turn.objects.get(), placement()
    assert (session.id, session.tenant, session.model, session.num_turns) == (SESSION_ID, "default", "tiny", 1)
    assert (session.created_at, session.last_turn_at) == (NOON, after(1.5))
    assert (str(turn.id), turn.session_id, turn.index, turn.status) == (TURN_ID, SESSION_ID, 1, "ok")
    assert (turn.prompt_tokens, turn.reused_tokens, turn.offered_tokens, turn.local_tokens) == (700, 608, 640, 32)
    assert (turn.prefill_decision, turn.decode_decision) == (Decision.PULLED, Decision.PULLED)
    assert (turn.prefill_decided_by, turn.decode_decided_by) == ("p0", "d0")
    assert (turn.started_at, turn.ttft_ms, turn.trace_id) == (NOON, 180.0, TRACE_ID)
    assert (lease.state, lease.engine, lease.incarnation, lease.tokens) == (LeaseState.HELD, "d0", "i1", 640)
    assert (lease.granted_at, lease.expires_at) == (after(1.4), after(481.4))


def test_turn_runs_until_the_router_records_it() -> None:
    send(decided(), engine="p0")
    turn = Turn.objects.get()
    assert (turn.status, turn.recorded_at, turn.trace_id) == ("running", None, TRACE_ID)


def test_router_names_the_engines_over_their_own_word() -> None:
    send(recorded(prefill_engine="p1"), engine="")
    send(decided(), engine="p0")
    turn = Turn.objects.get()
    assert (turn.prefill_engine, turn.prefill_decided_by) == ("p1", "p0")


def test_latest_decision_of_a_leg_stands() -> None:
    send(decided(decision=Decision.TRANSFER_FAILED), after(1), engine="p0")
    send(decided(decision=Decision.PULLED), after(3), engine="p1")
    send(decided(decision=Decision.TIMEOUT), after(2), engine="p2")
    turn = Turn.objects.get()
    assert (turn.prefill_decision, turn.prefill_decided_by) == (Decision.PULLED, "p1")


def test_session_counts_turns_once() -> None:
    for number in (1, 2, 3):
        turn_id = str(uuid.UUID(int=number))
        send(recorded(turn_id=turn_id, index=number), after(number), engine="")
        send(decided(turn_id=turn_id), after(number), engine="p0")
        send(recorded(turn_id=turn_id, index=number), after(number), engine="")
    assert Session.objects.get().num_turns == Turn.objects.count() == 3


def test_model_of_a_session_is_that_of_its_latest_turn() -> None:
    send(recorded(turn_id=str(uuid.UUID(int=2)), model="newer"), after(60), engine="")
    send(recorded(turn_id=str(uuid.UUID(int=1)), model="older"), after(0), engine="")
    assert Session.objects.get().model == "newer"


def test_routers_tenant_stands_over_an_engines() -> None:
    send(granted(tenant="forged"))
    send(recorded(tenant="acme"), engine="")
    send(granted("lease-2", tenant="forged"))
    assert Session.objects.get().tenant == "acme"


def test_handoff_leases_of_prefill_leave_no_row() -> None:
    Engine.objects.create(name="p0", role=Role.PREFILL)
    send(granted("handoff", kind=LeaseKind.HANDOFF), engine="p0")
    send(extended("handoff"), engine="p0")
    send(ended("handoff"), engine="p0")
    assert not Placement.objects.exists()


def test_extension_moves_the_end_and_pinning_stops_the_clock() -> None:
    send(granted())
    send(extended(remaining_seconds=900.0), after(10))
    assert placement().expires_at == after(910)
    send(extended(remaining_seconds=0.0, pinned=True), after(20))
    assert (placement().expires_at, placement().pinned) == (None, True)
    send(extended(remaining_seconds=60.0), after(30))
    assert (placement().expires_at, placement().pinned) == (after(90), False)


def test_older_extension_does_not_undo_a_newer_one() -> None:
    send(granted())
    send(extended(remaining_seconds=900.0), after(20))
    send(extended(remaining_seconds=60.0), after(10))
    assert placement().expires_at == after(920)


@pytest.mark.parametrize("state", [LeaseState.SUPERSEDED, LeaseState.RELEASED, LeaseState.EXPIRED, LeaseState.LOST])
def test_ended_lease_says_how_and_stays_ended(state: LeaseState) -> None:
    send(granted())
    send(ended(state=state, reason="ttl", num_reads=2), after(5))
    send(granted())
    send(extended(), after(9))
    lease = placement()
    assert (lease.state, lease.end_reason, lease.ended_at, lease.num_reads) == (state, "ttl", after(5), 2)


def test_end_before_its_grant_ends_it_all_the_same() -> None:
    send(ended(), after(5))
    send(granted(), NOON)
    lease = placement()
    assert (lease.state, lease.session_id, lease.tokens, lease.granted_at) == ("released", SESSION_ID, 640, NOON)


def test_engine_can_not_end_the_lease_of_another() -> None:
    send(granted(), engine="d0")
    send(ended(), after(5), engine="d1")
    send(extended(remaining_seconds=1.0), after(5), engine="d1")
    assert (placement().state, placement().expires_at) == (LeaseState.HELD, after(480))


def test_engines_own_word_replaces_an_inferred_end() -> None:
    send(granted(remaining_seconds=10.0))
    assert actions.expire_overdue_placements(now=after(60), limit=10) == 1
    assert (placement().state, placement().end_reason) == (LeaseState.EXPIRED, "overdue")
    send(ended(state=LeaseState.RELEASED, reason="command"), after(8))
    assert (placement().state, placement().end_reason, placement().ended_at) == ("released", "command", after(8))


def test_expiry_waits_for_the_engines_own_event() -> None:
    send(granted("due", remaining_seconds=10.0))
    send(granted("later", remaining_seconds=11.5))
    send(granted("pinned", remaining_seconds=0.0, pinned=True))
    assert actions.expire_overdue_placements(now=after(11.9), limit=10) == 0
    assert actions.expire_overdue_placements(now=after(12.1), limit=10) == 1
    assert placement("due").ended_at == after(10)
    assert {placement("later").state, placement("pinned").state} == {LeaseState.HELD}


def test_expiry_is_bounded() -> None:
    for number in range(5):
        send(granted(f"lease-{number}", remaining_seconds=10.0))
    assert [actions.expire_overdue_placements(now=after(60), limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_silent_engine_makes_placements_unknown_and_its_list_held_again() -> None:
    send(granted("kept"))
    send(granted("other-engine"), engine="d1")
    actions.mark_engine_silent("d0")
    assert (placement("kept").state, placement("other-engine").state) == (LeaseState.UNKNOWN, LeaseState.HELD)
    actions.reconcile_leases("d0", "i1", [granted("kept", remaining_seconds=100.0)], after(60))
    assert (placement("kept").state, placement("kept").expires_at) == (LeaseState.HELD, after(160))


def test_list_ends_what_it_does_not_name_and_adds_what_was_missed() -> None:
    send(granted("gone", remaining_seconds=480.0))
    send(granted("over", remaining_seconds=30.0))
    send(granted("former"), incarnation="i0")
    send(granted("kept"))
    listed = [granted("kept"), granted("missed"), granted("handoff", kind=LeaseKind.HANDOFF)]
    actions.reconcile_leases("d0", "i1", listed, after(60))
    found = {row.id: (row.state, row.end_reason) for row in Placement.objects.all()}
    assert found == {
        "gone": ("lost", "not_listed"),
        "over": ("expired", "not_listed"),
        "former": ("lost", "incarnation_lost"),
        "kept": ("held", ""),
        "missed": ("held", ""),
    }
    assert (placement("missed").session_id, placement("over").ended_at) == (SESSION_ID, after(30))


def test_empty_list_ends_everything() -> None:
    send(granted())
    actions.reconcile_leases("d0", "i1", [], after(60))
    assert placement().state == LeaseState.LOST


def test_list_holds_again_what_was_only_thought_ended() -> None:
    send(granted(remaining_seconds=10.0))
    actions.expire_overdue_placements(now=after(60), limit=10)
    actions.reconcile_leases("d0", "i1", [granted()], after(70))
    assert (placement().state, placement().ended_at, placement().end_reason) == (LeaseState.HELD, None, "")


def test_list_does_not_revive_what_the_engine_ended() -> None:
    send(granted())
    send(ended(), after(5))
    actions.reconcile_leases("d0", "i1", [granted()], after(6))
    assert placement().state == LeaseState.RELEASED


def test_dead_incarnation_loses_its_placements_alone() -> None:
    send(granted("old"), incarnation="i0")
    send(granted("new"), incarnation="i1")
    actions.mark_incarnation_lost("d0", "i0")
    assert (placement("old").state, placement("new").state) == (LeaseState.LOST, LeaseState.HELD)


def test_grant_that_arrives_after_its_incarnations_death_is_lost() -> None:
    actions.mark_incarnation_lost("d0", "i0")
    send(granted("late"), incarnation="i0")
    send(granted("fresh"), incarnation="i1")
    assert (placement("late").state, placement("fresh").state) == (LeaseState.LOST, LeaseState.HELD)


def test_grant_older_than_the_engines_list_is_lost_unless_listed() -> None:
    actions.reconcile_leases("d0", "i2", [granted("listed")], after(60))
    send(granted("listed"), after(0), incarnation="i2")
    send(granted("former"), after(1), incarnation="i1")
    send(granted("just-now"), after(59), incarnation="i2")
    states = {row.id: row.state for row in Placement.objects.all()}
    assert states == {"listed": "held", "former": "lost", "just-now": "held"}


def test_ungranted_leases_are_forgotten_after_an_hour() -> None:
    send(ended("never-granted"), NOON)
    send(granted("granted"), NOON)
    assert actions.forget_ungranted_leases(now=NOON + timedelta(minutes=59)) == 0
    assert actions.forget_ungranted_leases(now=NOON + timedelta(minutes=61)) == 1
    assert Placement.objects.get().id == "granted"


@pytest.mark.parametrize(
    "event",
    [
        granted(""),
        granted("x" * 201),
        granted("nul\0"),
        granted(turn_id="not-a-uuid"),
        granted(num_blocks=-1),
        granted(num_bytes=2**63),
        decided(session_id=""),
        decided(num_local_tokens=2**31),
        recorded(model="m" * 201),
        recorded(tenant="t" * 129),
        recorded(duration_ms=-1.0),
        recorded(duration_ms=float("inf")),
        recorded(status=""),
        recorded(parent_turn_id="nope"),
        ended(state=LeaseState.HELD),
        ended(state=LeaseState.UNKNOWN),
        extended("nul\0"),
    ],
)
def test_impossible_event_is_refused_and_leaves_nothing(event: Event) -> None:
    with pytest.raises(RefusedEventError):
        send(event)
    assert [model.objects.count() for model in (Session, Turn, Placement)] == [0, 0, 0]


def test_impossible_event_does_not_spoil_its_batch() -> None:
    batch = [Dated(granted("good"), NOON), Dated(granted("bad", num_blocks=-1), NOON), Dated(ended("good"), after(1))]
    refusals = actions.apply_events(batch, engine_name="d0", incarnation="i1")
    assert [refusal.event for refusal in refusals] == [batch[1].event]
    assert placement("good").state == LeaseState.RELEASED


def test_huge_remaining_time_is_stored_as_ten_years() -> None:
    send(granted(remaining_seconds=1e300))
    assert placement().expires_at == NOON + timedelta(days=3650)


def test_long_reason_is_cut() -> None:
    send(granted())
    send(ended(reason="r" * 500), after(1))
    assert placement().end_reason == "r" * 64
