"""How much a snapshot and an update read: the number of queries never grows with the number of rows."""

import uuid
from typing import Any

import pytest
from django.utils import timezone

from controlplane.dashboard import selectors
from controlplane.dashboard.pending import Changes
from controlplane.placement import actions as placement
from controlplane.placement.facts import Dated
from controlplane.transfers import actions as transfers
from tests.controlplane.placement.events import granted, recorded
from tests.controlplane.transfers.events import moved

pytestmark = pytest.mark.django_db

SNAPSHOT_QUERIES = 13


def store_sessions(count: int) -> None:
    now = timezone.now()
    events = []
    for number in range(count):
        turn_id, session_id = str(uuid.UUID(int=number + 1)), f"k1.session-{number}"
        events += [
            Dated(recorded(turn_id=turn_id, session_id=session_id), now),
            Dated(granted(f"lease-{number}", turn_id=turn_id, session_id=session_id), now),
            Dated(moved(f"transfer-{number}", turn_id=turn_id, session_id=session_id), now),
        ]
    placement.apply_events(events, engine_name="d0", incarnation="i")
    transfers.apply_events(events, engine_name="p0", incarnation="i")


@pytest.mark.parametrize("count", [1, selectors.MAX_SESSIONS + 10])
def test_snapshot_reads_a_fixed_number_of_queries(django_assert_max_num_queries: Any, count: int) -> None:
    store_sessions(count)
    with django_assert_max_num_queries(SNAPSHOT_QUERIES):
        rows, truncated = selectors.snapshot_rows(timezone.now())
    assert rows.sessions is not None
    assert len(rows.sessions) == min(count, selectors.MAX_SESSIONS)
    assert truncated == (["sessions"] if count > selectors.MAX_SESSIONS else [])
    assert all(session.placement and session.last_turn for session in rows.sessions)


def test_changed_placement_is_read_as_its_session(django_assert_max_num_queries: Any) -> None:
    store_sessions(3)
    with django_assert_max_num_queries(3):
        rows = selectors.changed_rows(Changes({"placement": frozenset({"lease-1"})}), (), timezone.now())
    assert [session.id for session in rows.sessions or ()] == ["k1.session-1"]
    assert rows.transfers is None


def test_collapsed_kind_is_read_as_its_bounded_list() -> None:
    store_sessions(selectors.MAX_TRANSFERS + 5)
    rows = selectors.changed_rows(Changes({"transfer": None}), (), timezone.now())
    assert len(rows.transfers or ()) == selectors.MAX_TRANSFERS


def test_unknown_kind_reads_nothing(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        rows = selectors.changed_rows(Changes({"pair": frozenset({"x"})}), (), timezone.now())
    assert rows.is_empty()
