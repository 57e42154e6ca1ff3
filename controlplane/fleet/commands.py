"""Commands to engines: sent through the socket of the engine's agent, answered with what happened there."""

import logging
from typing import Annotated
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone

from connector.identity import uuid7
from connector.protocol import Command, CommandDone, ExtendLease, ReleaseLease, ResetCache
from controlplane import mailbox
from controlplane.accounts.actions import record_audit
from controlplane.broadcast import broadcast
from controlplane.errors import ConflictError
from controlplane.fleet.groups import agent_group
from controlplane.fleet.models import Engine, Operation, OperationState
from controlplane.notify import changed

logger = logging.getLogger(__name__)

MAX_DEADLINE_SECONDS = 30.0
FAILED_OUTCOME = "failed"
PATIENCE_SHARE = 0.75
"""An engine gives up before its asker does, so that its reason still arrives: a busy one answers between two steps."""

CommandBody = ReleaseLease | ExtendLease | ResetCache


class ResetOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """``command_id``: sending one again does nothing again and answers as the first did."""

    command_id: UUID | None = None
    deadline_seconds: Annotated[float, msgspec.Meta(ge=2, le=MAX_DEADLINE_SECONDS)] = 10.0


def new_command_id() -> str:
    return str(uuid7())


def reset_cache(engine_name: str, options: ResetOptions, *, actor: str) -> Operation:
    """Asks the engine to release its leases and empty its prefix cache; it goes on trying until the deadline."""
    command_id = str(options.command_id) if options.command_id else new_command_id()
    body = ResetCache(command_id=command_id, patience_seconds=options.deadline_seconds * PATIENCE_SHARE)
    return send_command(engine_name, body, options.deadline_seconds, actor=actor)


def send_command(engine_name: str, body: CommandBody, deadline_seconds: float, *, actor: str = "") -> Operation:
    """Sends ``body`` and waits for its answer up to the deadline; the operation says how it went.

    ``body.command_id`` comes from ``new_command_id`` and is the operation's id; sending the same one again sends
    nothing and returns the first one's operation. Without an answer in time the operation is ``unanswered`` (the
    caller answers 202), and a late one still settles it. Call it outside a transaction, from a thread: it blocks.
    Raises ``Engine.DoesNotExist``, and ``ConflictError`` when no agent is connected.
    """
    deadline_seconds = min(deadline_seconds, MAX_DEADLINE_SECONDS)
    engine = Engine.objects.select_related("agent").get(name=engine_name)
    operation, created = _open_operation(engine, body, deadline_seconds, actor)
    if not created:
        return operation
    command = Command(deadline_seconds=deadline_seconds, body=body)
    message = {"type": "command.send", "frame": msgspec.json.encode(command).decode()}
    broadcast([(agent_group(engine.pk), message)])
    mailbox.wait(operation.pk, deadline_seconds)
    _note_deadline(operation.pk)
    operation.refresh_from_db()
    return operation


@transaction.atomic(durable=True)
def _open_operation(engine: Engine, body: CommandBody, deadline_seconds: float, actor: str) -> tuple[Operation, bool]:
    if not hasattr(engine, "agent") or not engine.agent.connected:
        raise ConflictError(f"No agent of engine {engine.name} is connected, so nothing can be asked of it.")
    name = _name_of(body)
    content = msgspec.to_builtins(body)
    operation, created = Operation.objects.get_or_create(
        pk=UUID(body.command_id),
        defaults={
            "engine_name": engine.name,
            "command": name,
            "body": content,
            "actor": actor,
            "deadline_seconds": deadline_seconds,
        },
    )
    if created:
        record_audit(actor=actor, action=name, object_kind="operation", object_id=operation.pk, after=content)
        changed("operation", [operation.pk])
    return operation, created


def _name_of(body: CommandBody) -> str:
    match body:
        case ReleaseLease():
            return "release"
        case ExtendLease(pinned=pinned):
            return "pin" if pinned else "extend"
        case ResetCache():
            return "reset_cache"


def _note_deadline(operation_id: UUID) -> None:
    waiting = Operation.objects.filter(pk=operation_id, state=OperationState.WAITING)
    if waiting.update(state=OperationState.UNANSWERED):
        changed("operation", [operation_id])


def settle_operation(engine_name: str, done: CommandDone) -> None:
    """Stores what the engine answered, once, and wakes whoever waits; answers to nothing are logged and dropped."""
    try:
        operation_id = UUID(done.command_id)
    except ValueError:
        logger.warning("event=answer_without_command engine=%s", engine_name)
        return
    state = OperationState.FAILED if done.outcome == FAILED_OUTCOME else OperationState.DONE
    settled = Operation.objects.filter(
        pk=operation_id,
        engine_name=engine_name,
        state__in=(OperationState.WAITING, OperationState.UNANSWERED),
    ).update(state=state, outcome=done.outcome[:32], detail=done.detail[:500], finished_at=timezone.now())
    if not settled:
        logger.warning("event=answer_without_command engine=%s command_id=%s", engine_name, operation_id)
        return
    mailbox.post(operation_id, done.outcome)
    changed("operation", [operation_id])
