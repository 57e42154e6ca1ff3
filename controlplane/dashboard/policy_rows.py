"""The policy part of a frame: what holds, what changed last, and who has confirmed it."""

from datetime import datetime

import msgspec
from django.db.models import Count, F

from controlplane.dashboard.frames import AckRow, FieldDiff, FieldDrift, PolicyRow, PolicyValue, RevisionRow
from controlplane.dashboard.rows import milliseconds_between
from controlplane.policy import selectors as policy
from controlplane.policy.models import PolicyAck, PolicyRevision

MAX_REVISIONS = 10
MAX_ACKS = 200
MAX_SCOPES = 50


def policy_row(now: datetime) -> PolicyRow:
    book = policy.current_book()
    acks = policy.acks().filter(revision=book.number)
    counts = acks.aggregate(num_enforcers=Count("id"), num_answered=Count("acked_at"))
    unanswered_first = acks.order_by(F("acked_at").desc(nulls_first=True), "kind", "enforcer")
    patches = [(str(scope), patch) for scope, patch in sorted(book.patches.items(), key=lambda item: str(item[0]))]
    set_patches = {scope: built for scope, patch in patches if (built := msgspec.to_builtins(patch))}
    return PolicyRow(
        revision=book.number,
        values=msgspec.to_builtins(book.effective()),
        scopes=dict(list(set_patches.items())[:MAX_SCOPES]),
        revisions=[_revision_row(one, now) for one in policy.revisions().order_by("-number")[:MAX_REVISIONS]],
        acks=[_ack_row(ack, now) for ack in unanswered_first[:MAX_ACKS]],
        **counts,
    )


def _revision_row(revision: PolicyRevision, now: datetime) -> RevisionRow:
    return RevisionRow(
        revision=revision.number,
        scope=revision.scope,
        values=revision.values,
        diff=msgspec.convert(revision.diff, list[FieldDiff]),
        author=revision.author,
        reason=revision.reason,
        age_ms=milliseconds_between(revision.created_at, now),
    )


def _ack_row(ack: PolicyAck, now: datetime) -> AckRow:
    return AckRow(
        enforcer=ack.enforcer,
        kind=ack.kind,
        revision=ack.revision_id,
        state=policy.ack_state(ack, now=now),
        latency_ms=milliseconds_between(ack.sent_at, ack.acked_at) if ack.acked_at else None,
        waiting_ms=None if ack.acked_at else milliseconds_between(ack.sent_at, now),
        drift=[
            FieldDrift(field=field, expected=_value(ack.expected, field), actual=_value(ack.values, field))
            for field in policy.ack_drift(ack)
        ],
        unsupported_fields=ack.unsupported_fields,
    )


def _value(values: dict[str, PolicyValue] | None, field: str) -> PolicyValue | None:
    return None if values is None else values.get(field)
