"""Beat's tasks end overdue placements in bounded batches and leave locked rows to others."""

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from controlplane.placement import actions, tasks
from controlplane.placement.facts import Dated
from controlplane.placement.models import Placement
from tests.controlplane.placement.events import ended, granted

WAIT_SECONDS = 10.0


def grant(number: int, *, seconds_ago: float) -> None:
    at = timezone.now() - timedelta(seconds=seconds_ago)
    events = [Dated(granted(f"lease-{index:04}", remaining_seconds=10.0), at) for index in range(number)]
    actions.apply_events(events, engine_name="d0", incarnation="i1")


@pytest.mark.django_db
def test_run_ends_everything_overdue_over_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "EXPIRY_BATCH", 100)
    grant(350, seconds_ago=60)
    assert tasks.expire_leases() == 350
    assert tasks.expire_leases() == 0
    assert set(Placement.objects.values_list("state", "end_reason")) == {("expired", "overdue")}


@pytest.mark.django_db
def test_one_run_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "EXPIRY_BATCH", 10)
    monkeypatch.setattr(tasks, "MAX_EXPIRY_BATCHES", 3)
    grant(50, seconds_ago=60)
    assert tasks.expire_leases() == 30


@pytest.mark.django_db
def test_run_leaves_what_is_not_due() -> None:
    grant(3, seconds_ago=1)
    assert tasks.expire_leases() == 0


@pytest.mark.django_db
def test_forgetting_keeps_fresh_leases() -> None:
    actions.apply_event(ended("new"), engine_name="d0", incarnation="i1", occurred_at=timezone.now())
    assert tasks.forget_ungranted_leases() == 0


@pytest.mark.django_db(transaction=True)
def test_run_passes_over_rows_that_another_transaction_holds() -> None:
    grant(2, seconds_ago=60)
    is_locked, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Placement.objects.select_for_update().get(id="lease-0000")
            is_locked.set()
            may_end.wait(WAIT_SECONDS)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_locked.wait(WAIT_SECONDS)
    assert tasks.expire_leases() == 1
    may_end.set()
    holder.join(WAIT_SECONDS)
    assert tasks.expire_leases() == 1
