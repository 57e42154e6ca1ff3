"""Publishing revisions and storing what enforcers confirm."""

import logging
from collections.abc import Mapping
from datetime import timedelta

import msgspec
from django.db import connection, transaction
from django.db.models.functions import Coalesce
from django.utils import timezone

from connector.protocol import PolicyAck as AckMessage
from connector.protocol import PolicyPatch, PolicyValues
from controlplane.accounts.actions import record_audit
from controlplane.broadcast import broadcast_on_commit
from controlplane.errors import ConflictError, FieldError, InvalidInputError, field_error
from controlplane.fleet.groups import AGENTS, ROUTERS
from controlplane.fleet.selectors import connected_routers, enforcing_engines
from controlplane.notify import changed
from controlplane.policy import selectors
from controlplane.policy.effective import FLEET, Scope, diff_patches, drifted_fields, merge_patch, parse_scope
from controlplane.policy.models import EnforcerKind, PolicyAck, PolicyRevision

logger = logging.getLogger(__name__)

EXPECTED_WITHIN = timedelta(minutes=10)
"""An engine that was heard within this time is expected to ack, though it may be silent now."""
NOTE_WITHIN = timedelta(seconds=3)
"""Longer than the time between two looks for overdue acks, so that none is missed; a dashboard told twice refetches."""
NUMBERING_LOCK = 0x6261636B
"""Advisory lock under which revisions are numbered, so that they commit in the order of their numbers."""


@transaction.atomic
def publish_policy(*, scope: str, values: Mapping[str, object], author: str, reason: str = "") -> PolicyRevision:
    """A new revision that lays ``values`` over what the scope sets already; ``None`` gives a field back to the wider
    scope. Enforcers are told when it commits. Raises ``InvalidInputError`` that names each bad field.
    """
    parsed = _parse_scope(scope)
    _refuse_unknown_fields(values)
    _take_numbering_lock()
    before = _patch_of(selectors.newest_of_scope(parsed))
    try:
        after = merge_patch(before, dict(values))
    except msgspec.ValidationError as error:
        raise InvalidInputError(field_error(error, "values")) from None
    return _append(parsed, before, after, author=author, reason=reason)


@transaction.atomic
def rollback_policy(number: int, *, author: str, reason: str = "") -> PolicyRevision:
    """A new revision that gives the scope of revision ``number`` what it set before that one.

    Raises ``ConflictError`` when a later revision of the scope stands on it. Rolling back revision 1 is refused too:
    there was nothing before it. Raises ``PolicyRevision.DoesNotExist``.
    """
    _take_numbering_lock()
    undone = PolicyRevision.objects.get(number=number)
    scope = parse_scope(undone.scope)
    newest = selectors.newest_of_scope(scope)
    if newest is None or newest.number != number:
        raise ConflictError(f"Revision {number} is not the newest of scope {scope}; roll the later ones back first.")
    previous = selectors.newest_of_scope(scope, before=number)
    if previous is None and scope == Scope(FLEET):
        raise ConflictError(f"Revision {number} is the first of the fleet; there is nothing to go back to.")
    reason = reason or f"Rolls back revision {number}."
    return _append(scope, _patch_of(newest), _patch_of(previous), author=author, reason=reason, rolled_back=number)


@transaction.atomic
def ensure_first_revision() -> bool:
    """Makes revision 1, the fleet's defaults written out, if there is none; True if it did."""
    _take_numbering_lock()
    if selectors.newest_number():
        return False
    defaults = msgspec.convert(msgspec.to_builtins(PolicyValues()), PolicyPatch)
    _append(Scope(FLEET), PolicyPatch(), defaults, author="system", reason="Defaults of this version.")
    return True


def _append(
    scope: Scope, before: PolicyPatch, after: PolicyPatch, *, author: str, reason: str, rolled_back: int | None = None
) -> PolicyRevision:
    revision = PolicyRevision.objects.create(
        number=selectors.newest_number() + 1,
        scope=str(scope),
        values=msgspec.to_builtins(after),
        diff=diff_patches(before, after),
        author=author,
        reason=reason,
        rolled_back=rolled_back,
    )
    record_audit(
        actor=author,
        action="rollback" if rolled_back else "publish",
        object_kind="policy",
        object_id=revision.number,
        before=msgspec.to_builtins(before),
        after=revision.values,
    )
    _expect_acks(revision)
    for group in (AGENTS, ROUTERS):
        broadcast_on_commit(group, selectors.RevisionKey(revision.number, revision.created_at).message())
    changed("policy", [revision.number])
    logger.info("event=policy_published revision=%d scope=%s author=%s", revision.number, scope, author)
    return revision


def _expect_acks(revision: PolicyRevision) -> None:
    """One waiting row per enforcer that should confirm: every one, as each must know the newest revision."""
    book = selectors.read_book()
    expected = [
        (EnforcerKind.ENGINE, engine.name, selectors.engine_values(book, engine))
        for engine in enforcing_engines(timezone.now() - EXPECTED_WITHIN)
    ]
    expected += [(EnforcerKind.ROUTER, router.name, book.effective()) for router in connected_routers()]
    PolicyAck.objects.bulk_create(
        PolicyAck(
            revision=revision,
            kind=kind,
            enforcer=name,
            expected=msgspec.to_builtins(values),
            sent_at=revision.created_at,
        )
        for kind, name, values in expected
    )


def expect_ack(*, kind: EnforcerKind, enforcer: str, revision: int, values: PolicyValues) -> None:
    """Notes that an enforcer is told ``revision`` after a connect or a restart: it has to confirm, or confirm again."""
    if not revision:
        return
    told = PolicyAck(
        revision_id=revision,
        kind=kind,
        enforcer=enforcer,
        expected=msgspec.to_builtins(values),
        sent_at=timezone.now(),
    )
    PolicyAck.objects.bulk_create(
        [told],
        update_conflicts=True,
        unique_fields=["revision", "kind", "enforcer"],
        update_fields=["expected", "sent_at", "values", "acked_at", "unsupported_fields"],
    )
    changed("ack", [enforcer])


def record_ack(ack: AckMessage, *, kind: EnforcerKind, enforcer: str, told: PolicyValues | None) -> bool:
    """Stores what an enforcer read back; False for a revision that it wasn't told.

    ``told`` are the values that its socket sent with this revision, if it did: an enforcer that came while the revision
    was published has no row yet, and gets one. The first answer is the one that is timed.
    """
    now = timezone.now()
    unsupported = [field for field in ack.unsupported_fields if field in PolicyValues.__struct_fields__]
    answer = {"values": msgspec.to_builtins(ack.values), "unsupported_fields": unsupported}
    rows = PolicyAck.objects.filter(revision_id=ack.revision, kind=kind, enforcer=enforcer)
    if not rows.update(**answer, acked_at=Coalesce("acked_at", now)):
        if told is None or not PolicyRevision.objects.filter(number=ack.revision).exists():
            logger.warning("event=ack_of_unknown_revision enforcer=%s revision=%d", enforcer, ack.revision)
            return False
        made = {**answer, "expected": msgspec.to_builtins(told), "acked_at": now, "sent_at": now}
        PolicyAck.objects.update_or_create(revision_id=ack.revision, kind=kind, enforcer=enforcer, defaults=made)
    changed("ack", [enforcer])
    if told is not None and (drift := drifted_fields(told, ack.values)):
        fields = ",".join(drift)
        logger.warning("event=policy_drifted enforcer=%s revision=%d fields=%s", enforcer, ack.revision, fields)
    return True


def note_overdue_acks() -> None:
    """Announces acks that have become ``unacknowledged`` within the last seconds; nothing is stored."""
    now = timezone.now()
    overdue = PolicyAck.objects.filter(
        acked_at=None, sent_at__lt=now - selectors.ACK_WITHIN, sent_at__gte=now - selectors.ACK_WITHIN - NOTE_WITHIN
    )
    if found := list(overdue.values_list("enforcer", flat=True).distinct()):
        logger.warning("event=policy_unacknowledged num_enforcers=%d enforcers=%s", len(found), ",".join(found[:20]))
        changed("ack", found)


def _parse_scope(scope: str) -> Scope:
    try:
        return parse_scope(scope)
    except ValueError as error:
        raise InvalidInputError(FieldError("scope", str(error))) from None


def _refuse_unknown_fields(values: Mapping[str, object]) -> None:
    if not values:
        message = "sets nothing; name a field, or give one back to the wider scope with null"
        raise InvalidInputError(FieldError("values", message))
    unknown = sorted(set(values) - set(PolicyPatch.__struct_fields__))
    if unknown:
        raise InvalidInputError(*(FieldError(f"values.{name[:64]}", "is not a policy field") for name in unknown[:20]))


def _patch_of(revision: PolicyRevision | None) -> PolicyPatch:
    return msgspec.convert(revision.values, PolicyPatch) if revision else PolicyPatch()


def _take_numbering_lock() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [NUMBERING_LOCK])
