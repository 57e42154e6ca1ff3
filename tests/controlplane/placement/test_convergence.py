"""Whatever the order, repetition and batching of one turn's events, the rows end the same."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from connector.protocol import Decision, Event, LeaseKind, LeaseState, Role
from controlplane.fleet.models import Engine
from controlplane.placement import actions
from controlplane.placement.facts import Dated
from controlplane.placement.models import Placement, Session, Turn
from tests.controlplane.placement.events import after, decided, ended, extended, granted, recorded


class Sent(NamedTuple):
    event: Event
    at: datetime
    engine: str


TURN = [
    Sent(decided(decision=Decision.TIMEOUT, num_pulled_tokens=0), after(0.2), "p1"),
    Sent(granted("handoff", kind=LeaseKind.HANDOFF), after(0.3), "p0"),
    Sent(decided(), after(0.3), "p0"),
    Sent(decided(Role.DECODE, num_prompt_tokens=701), after(0.4), "d0"),
    Sent(ended("handoff", state=LeaseState.RELEASED), after(0.5), "p0"),
    Sent(granted(), after(1.4), "d0"),
    Sent(recorded(), after(1.5), ""),
    Sent(extended(remaining_seconds=900.0), after(20), "d0"),
    Sent(extended(remaining_seconds=0.0, pinned=True), after(30), "d0"),
    Sent(extended(remaining_seconds=60.0), after(40), "d0"),
    Sent(ended(state=LeaseState.EXPIRED, reason="ttl", num_reads=3), after(100), "d0"),
]


def deliver(events: Sequence[Sent]) -> None:
    """In batches as they come: neighbours of one sender are one batch."""
    batch: list[Dated] = []
    for position, sent in enumerate(events):
        batch.append(Dated(sent.event, sent.at))
        if position + 1 == len(events) or events[position + 1].engine != sent.engine:
            actions.apply_events(batch, engine_name=sent.engine, incarnation="i1" if sent.engine else "")
            batch = []


def rows() -> list[list[dict[str, Any]]]:
    return [list(model.objects.order_by("pk").values()) for model in (Session, Turn, Placement)]


def outcome(events: Sequence[Sent]) -> list[list[dict[str, Any]]]:
    """The rows that these events make, undone afterwards."""
    with transaction.atomic():
        deliver(events)
        found = rows()
        transaction.set_rollback(True)
    return found


class ConvergenceTest(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        for name in ("p0", "p1"):
            Engine.objects.create(name=name, role=Role.PREFILL)
        Engine.objects.create(name="d0", role=Role.DECODE)

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        order=st.permutations(TURN),
        repeated=st.lists(st.tuples(st.sampled_from(TURN), st.integers(0, 40)), max_size=8),
    )
    def test_any_order_and_repetition_ends_in_the_same_rows(
        self, order: list[Sent], repeated: list[tuple[Sent, int]]
    ) -> None:
        events = list(order)
        for sent, position in repeated:
            events.insert(position, sent)
        assert outcome(events) == outcome(TURN)

    @settings(max_examples=100, deadline=None)
    @given(kept=st.sets(st.sampled_from(range(len(TURN)))), data=st.data())
    def test_any_part_of_them_converges_too(self, kept: set[int], data: st.DataObject) -> None:
        part = [TURN[number] for number in sorted(kept)]
        assert outcome(data.draw(st.permutations(part))) == outcome(part)


def test_expected_rows_are_those_of_the_turn(db: None) -> None:
    Engine.objects.create(name="p0", role=Role.PREFILL)
    deliver(TURN)
    (session,), (turn,), (lease,) = rows()
    assert (session["num_turns"], turn["prefill_decided_by"], turn["prompt_tokens"]) == (1, "p0", 701)
    assert (lease["state"], lease["expires_at"], lease["num_reads"]) == ("expired", after(100), 3)


@pytest.mark.django_db
def test_repeating_the_whole_turn_changes_nothing() -> None:
    Engine.objects.create(name="p0", role=Role.PREFILL)
    deliver(TURN)
    once = rows()
    deliver(TURN)
    assert rows() == once
