"""Lets go of the leases of engines that drain and that no session came back for."""

import logging
import time
from uuid import UUID, uuid5

from django.utils import timezone

from connector.protocol import ReleaseLease
from controlplane.errors import ConflictError
from controlplane.fleet.commands import send_command
from controlplane.fleet.drains import deadline, release_time
from controlplane.fleet.models import Engine, OperationState
from controlplane.fleet.selectors import draining_engines
from controlplane.notify import changed
from controlplane.placement.selectors import held_placements

RELEASES_PER_RUN = 20
"""Of one engine; a run comes every 2 s, so that a drain takes blocks back at a steady, bounded pace."""

RUN_SECONDS = 1.5
ANSWER_SECONDS = 2.0
RETRY_SECONDS = 60
"""A release that failed or wasn't answered is asked for again after so long, not with each run."""

ACTOR = "drain"

_COMMANDS = UUID("0197c0de-d4a1-7000-8000-000000000001")

logger = logging.getLogger(__name__)


def release_lingering_leases() -> int:
    """How many leases were let go. Idempotent: a lease that was asked for lately isn't asked for again, so runs may
    overlap. Blocks for about ``RUN_SECONDS`` at most, or one answer more."""
    until = time.monotonic() + RUN_SECONDS
    engines = list(draining_engines())
    changed("engine", [engine.name for engine in engines])  # its page shows how far it is, which time alone may change
    return sum(_release_some(engine, until) for engine in engines)


def _release_some(engine: Engine, until: float) -> int:
    now, requested_at = timezone.now(), engine.drain_requested_at
    if requested_at is None or now < release_time(engine, requested_at):
        return 0
    leases = held_placements(engine.name, with_pinned=now >= deadline(engine, requested_at))
    num_released = 0
    for lease_id in leases[:RELEASES_PER_RUN].values_list("pk", flat=True):
        if time.monotonic() >= until:
            break
        attempt = int((now - requested_at).total_seconds() // RETRY_SECONDS)
        command_id = uuid5(_COMMANDS, f"{lease_id} {requested_at.isoformat()} {attempt}")
        body = ReleaseLease(command_id=str(command_id), key=lease_id, reason=ACTOR)
        try:
            operation = send_command(engine.name, body, ANSWER_SECONDS, actor=ACTOR)
        except (ConflictError, Engine.DoesNotExist) as error:
            logger.info("event=drain_waits engine=%s reason=%s", engine.name, error)
            break
        if operation.state == OperationState.UNANSWERED:
            break
        num_released += operation.state == OperationState.DONE
    return num_released
