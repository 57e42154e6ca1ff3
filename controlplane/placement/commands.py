"""Commands about one placement: sent to the engine, whose own events then change the row."""

from typing import Annotated
from uuid import UUID

import msgspec

from connector.protocol import MIN_TTL_SECONDS, ExtendLease, ReleaseLease
from controlplane.errors import ConflictError
from controlplane.fleet.commands import new_command_id, send_command
from controlplane.fleet.models import Operation
from controlplane.fleet.selectors import operations
from controlplane.placement import selectors
from controlplane.placement.models import OPEN_STATES, Placement

MAX_TTL_SECONDS = 7 * 24 * 3600


class CommandOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """``command_id``: sending one again does nothing again and answers as the first did."""

    command_id: UUID | None = None
    deadline_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=30)] = 5.0


class ExtendOptions(CommandOptions, kw_only=True, frozen=True, forbid_unknown_fields=True):
    ttl_seconds: Annotated[int, msgspec.Meta(ge=MIN_TTL_SECONDS, le=MAX_TTL_SECONDS)]


def release_placement(placement_id: str, options: CommandOptions, *, actor: str) -> Operation:
    """Asks the engine to let go of the blocks at once, pinned or not."""
    placement = _commandable(placement_id, options)
    body = ReleaseLease(command_id=_command_id(options), key=placement.pk)
    return send_command(placement.engine, body, options.deadline_seconds, actor=actor)


def extend_placement(placement_id: str, options: ExtendOptions, *, actor: str) -> Operation:
    """Asks the engine to hold on for ``ttl_seconds`` from now; takes a pin back."""
    return _extend(placement_id, options, float(options.ttl_seconds), pinned=False, actor=actor)


def pin_placement(placement_id: str, options: CommandOptions, *, actor: str) -> Operation:
    """Asks the engine to hold on without end; an extension or a release ends the pin."""
    return _extend(placement_id, options, 0.0, pinned=True, actor=actor)


def _extend(placement_id: str, options: CommandOptions, ttl_seconds: float, *, pinned: bool, actor: str) -> Operation:
    placement = _commandable(placement_id, options)
    body = ExtendLease(command_id=_command_id(options), lease_id=placement.pk, ttl_seconds=ttl_seconds, pinned=pinned)
    return send_command(placement.engine, body, options.deadline_seconds, actor=actor)


def _commandable(placement_id: str, options: CommandOptions) -> Placement:
    """The placement, unless it has ended; one that this very command ended may be asked for again."""
    placement = selectors.placements().get(pk=placement_id)
    is_repeated = options.command_id is not None and operations().filter(pk=options.command_id).exists()
    if placement.state not in OPEN_STATES and not is_repeated:
        raise ConflictError(f"This placement has ended: {placement.state} ({placement.end_reason}).")
    return placement


def _command_id(options: CommandOptions) -> str:
    return str(options.command_id) if options.command_id else new_command_id()
