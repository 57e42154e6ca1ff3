"""Why a turn reused less than was offered: the engine says from which token, the router which message.

Field reports 1 (vllm-project/vllm#43094) and 57 (vllm-project/vllm#36829, anthropics/claude-code#68900).
"""

import itertools
from typing import Any

import pytest
from rest_framework.test import APIClient

from connector.protocol import Decision, Event, Role
from controlplane.placement import actions
from controlplane.placement.bounds import RefusedEventError
from tests.controlplane.placement.events import SESSION_ID, after, decided, recorded

pytestmark = pytest.mark.django_db

CHANGED = recorded(diverged_at_message=0, diverged_role="system")
TRIMMED = decided(decision=Decision.TRIMMED_PREFIX_DIVERGED, num_verified_tokens=64, diverged_at_token=64)
SENDERS: tuple[tuple[Event, str], ...] = (
    (TRIMMED, "p0"),
    (decided(Role.DECODE, diverged_at_token=0), "d0"),
    (CHANGED, ""),
)


def send(event: Event, engine: str, seconds: float = 0) -> None:
    actions.apply_event(event, engine_name=engine, incarnation="i1", occurred_at=after(seconds))


def turn(api: APIClient) -> dict[str, Any]:
    (row,) = api.get(f"/api/v1/sessions/{SESSION_ID}/turns").json()["results"]
    return {name: row[name] for name in ("diverged_at_token", "diverged_at_message", "diverged_role")}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_turn_names_what_changed_whoever_reports_first(api: APIClient, order: tuple[int, ...]) -> None:
    """What the decode leg says is another matter: there both engines got the prompt of one and the same request."""
    for position in order:
        send(*SENDERS[position], seconds=position)
    assert turn(api) == {"diverged_at_token": 64, "diverged_at_message": 0, "diverged_role": "system"}


def test_turn_that_went_on_has_no_difference(api: APIClient) -> None:
    send(decided(), "p0")
    send(recorded(), "", seconds=1)
    assert turn(api) == {"diverged_at_token": None, "diverged_at_message": None, "diverged_role": ""}


@pytest.mark.parametrize("event", [recorded(diverged_role="x" * 17), recorded(diverged_at_message=2**31)])
def test_difference_out_of_bounds_is_refused(event: Event) -> None:
    with pytest.raises(RefusedEventError):
        send(event, "")
