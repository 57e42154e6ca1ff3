"""A drain: asked for, seen, changed, taken back; drained only when the engine itself says that nothing is left."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from controlplane.accounts.models import AuditEntry
from controlplane.fleet.drains import progress_of
from controlplane.fleet.models import Engine

EMPTY = {"num_leases": 0, "num_leased_blocks": 0, "num_quarantined_blocks": 0, "num_running": 0, "num_waiting": 0}
ADDRESS = "/api/v1/engines/decode-0"


def an_engine(*, load: dict[str, int] | None = None, asked_seconds_ago: float = 60.0, **fields: Any) -> Engine:
    now = timezone.now()
    given = {
        "name": "decode-0",
        "approved": True,
        "reported_state": "ready",
        "draining": True,
        "drain_requested_at": now - timedelta(seconds=asked_seconds_ago),
        "last_seen_at": now,
        "load": load,
    }
    return Engine(**(given | fields))


@pytest.mark.parametrize(
    ("engine", "state", "leases", "legs"),
    [
        (an_engine(load=EMPTY), "drained", 0, 0),
        (an_engine(load={**EMPTY, "num_leases": 3}), "draining", 3, 0),
        (an_engine(load={**EMPTY, "num_running": 1, "num_waiting": 2}), "draining", 0, 3),
        (an_engine(load={**EMPTY, "num_leased_blocks": 5}), "draining", 0, 0),
        (an_engine(load={**EMPTY, "num_quarantined_blocks": 5}), "draining", 0, 0),
        (an_engine(load=EMPTY, asked_seconds_ago=2), "draining", 0, 0),
        (an_engine(load=EMPTY, last_seen_at=None), "draining", 0, 0),
        (an_engine(load=None), "draining", None, None),
        (an_engine(load=EMPTY, reported_state="silent"), "draining", None, None),
        (an_engine(load={**EMPTY, "num_leases": 3}, reported_state="down"), "drained", 0, 0),
    ],
    ids=["empty", "lease", "legs", "hand-over", "quarantine", "too early", "unseen", "no load", "silent", "down"],
)
def test_progress_is_what_the_engine_says(engine: Engine, state: str, leases: int | None, legs: int | None) -> None:
    progress = progress_of(engine)
    assert progress is not None
    assert (progress.state, progress.num_leases, progress.num_legs) == (state, leases, legs)


@pytest.mark.django_db
def test_drain_is_told_with_its_times_and_repeats_start_nothing_anew(api: APIClient) -> None:
    Engine.objects.create(name="decode-0")
    assert api.get(ADDRESS).json()["drain"] is None
    first = api.post(f"{ADDRESS}/drain").json()
    assert (first["draining"], first["drain"]["state"]) == (True, "draining")
    engine = Engine.objects.get()
    assert engine.drain_requested_at is not None
    again = api.post(f"{ADDRESS}/drain").json()
    assert again["drain"] == first["drain"]
    changed = api.post(f"{ADDRESS}/drain", {"linger_seconds": 5}, format="json").json()["drain"]
    assert changed["requested_at"] == first["drain"]["requested_at"]
    assert changed["deadline_at"] == first["drain"]["deadline_at"]
    engine.refresh_from_db()
    assert (engine.drain_linger_seconds, engine.drain_deadline_seconds) == (5.0, 600.0)
    assert [entry.after for entry in AuditEntry.objects.filter(action="drain").order_by("pk")] == [
        {"draining": True},
        {"linger_seconds": 5.0, "deadline_seconds": None},
    ]


@pytest.mark.django_db
def test_undrain_at_any_time_and_a_new_drain_begins_with_the_defaults(api: APIClient) -> None:
    Engine.objects.create(name="decode-0")
    api.post(f"{ADDRESS}/drain", {"linger_seconds": 1, "deadline_seconds": 2}, format="json")
    for _ in range(2):
        assert api.post(f"{ADDRESS}/undrain").json()["drain"] is None
    api.post(f"{ADDRESS}/drain")
    engine = Engine.objects.get()
    assert (engine.drain_linger_seconds, engine.drain_deadline_seconds) == (60.0, 600.0)


@pytest.mark.django_db
@pytest.mark.parametrize("options", [{"linger_seconds": -1}, {"deadline_seconds": "soon"}, {"hurry": True}, [1]])
def test_bad_options_start_no_drain(api: APIClient, options: Any) -> None:
    Engine.objects.create(name="decode-0")
    assert api.post(f"{ADDRESS}/drain", options, format="json").status_code == 400
    assert not Engine.objects.get().draining
