"""Batches of several senders that name the same turns in different orders neither deadlock nor lose anything."""

import threading
import uuid

import pytest
from django.db import connection

from connector.protocol import Role
from controlplane.placement import actions
from controlplane.placement.facts import Dated
from controlplane.placement.models import Placement, Session, Turn
from tests.controlplane.placement.events import after, decided, granted, recorded

NUM_TURNS = 400
NUM_ROUNDS = 4
JOIN_SECONDS = 30.0


def turn(index: int) -> dict[str, str]:
    return {"turn_id": str(uuid.UUID(int=index + 1)), "session_id": f"session-{index % 200}"}


@pytest.mark.django_db(transaction=True)
def test_senders_with_opposite_orders_all_get_through() -> None:
    numbers = list(range(NUM_TURNS))
    batches = {
        "p0": [Dated(decided(**turn(index)), after(index)) for index in numbers],
        "d0": [Dated(decided(Role.DECODE, **turn(index)), after(index)) for index in reversed(numbers)],
        "d1": [Dated(granted(f"lease-{index}", **turn(index)), after(index)) for index in numbers[::2] + numbers[1::2]],
        "": [Dated(recorded(**turn(index)), after(index)) for index in reversed(numbers)],
    }
    failures: list[Exception] = []
    start = threading.Barrier(len(batches))

    def send(engine: str) -> None:
        try:
            for _ in range(NUM_ROUNDS):
                start.wait(JOIN_SECONDS)
                actions.apply_events(batches[engine], engine_name=engine, incarnation="i1")
        except Exception as error:  # noqa: BLE001 - a thread's failure is the test's
            failures.append(error)
            start.abort()
        finally:
            connection.close()

    threads = [threading.Thread(target=send, args=(engine,)) for engine in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS)
    assert failures == []
    assert (Turn.objects.count(), Placement.objects.count()) == (NUM_TURNS, NUM_TURNS)
    assert sum(Session.objects.values_list("num_turns", flat=True)) == NUM_TURNS
    assert Turn.objects.filter(prefill_decision="pulled", decode_decision="pulled", status="ok").count() == NUM_TURNS
