"""Reads of policy: the book in force, revisions, and how far each enforcer is."""

import threading
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from django.db.models import QuerySet

from connector.protocol import PolicyPatch, PolicyValues
from controlplane.fleet.models import Engine
from controlplane.policy.effective import PolicyBook, Scope, drifted_fields, engine_scopes, parse_scope
from controlplane.policy.models import PolicyAck, PolicyRevision

ACK_WITHIN = timedelta(seconds=3)
RECENT_SECONDS = 1.0


class AckState(StrEnum):
    """``waiting`` for at most 3 s, then ``unacknowledged`` until the answer comes after all.

    ``drifted``: read back other values than told. ``unsupported``: the same, but only in fields that it can't do.
    """

    WAITING = "waiting"
    ACKED = "acked"
    DRIFTED = "drifted"
    UNACKNOWLEDGED = "unacknowledged"
    UNSUPPORTED = "unsupported"


def revisions() -> QuerySet[PolicyRevision]:
    return PolicyRevision.objects.all()


def newest_number() -> int:
    """0 before the first revision."""
    newest = PolicyRevision.objects.order_by("-number").values_list("number", flat=True).first()
    return newest or 0


def newest_of_scope(scope: Scope, *, before: int | None = None) -> PolicyRevision | None:
    found = PolicyRevision.objects.filter(scope=str(scope))
    if before is not None:
        found = found.filter(number__lt=before)
    return found.order_by("-number").first()


def current_book() -> PolicyBook:
    """The policy in force. A revision never changes, so a book is read once per number and process."""
    return _books.current()


class RevisionKey(NamedTuple):
    """Names a revision beyond doubt: its number alone is used again after a transaction that was rolled back."""

    number: int
    created_at: datetime

    @classmethod
    def of_message(cls, message: Mapping[str, Any]) -> "RevisionKey":
        return cls(message["revision"], datetime.fromisoformat(message["created_at"]))

    def message(self) -> dict[str, Any]:
        return {"type": "policy.changed", "revision": self.number, "created_at": self.created_at.isoformat()}


def newest_key() -> RevisionKey | None:
    key = PolicyRevision.objects.order_by("-number").values_list("number", "created_at").first()
    return RevisionKey(*key) if key else None


class _Books:
    """Holds the newest book; thousands of sockets ask for the same one within a second of its publication."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: RevisionKey | None = None
        self._book = PolicyBook(0, {})
        self._recent: RevisionKey | None = None
        self._is_recent_until = 0.0

    def current(self) -> PolicyBook:
        key = newest_key()
        with self._lock:
            if self._key != key:
                self._book, self._key = read_book(), key
            return self._book

    def recent_key(self) -> RevisionKey | None:
        now = time.monotonic()
        with self._lock:
            if now < self._is_recent_until:
                return self._recent
            self._is_recent_until = now + RECENT_SECONDS
        recent = newest_key()
        with self._lock:
            self._recent = recent
        return recent

    def cached(self, key: RevisionKey) -> PolicyBook | None:
        with self._lock:
            return self._book if self._key == key else None


def cached_book(key: RevisionKey) -> PolicyBook | None:
    """The book of this revision if it is the one that this process read last; never waits for the database."""
    return _books.cached(key)


def recent_key() -> RevisionKey | None:
    """The newest revision as of at most a second ago: one query a second and process, however many ask."""
    return _books.recent_key()


def read_book() -> PolicyBook:
    """The book as this transaction sees it."""
    newest = PolicyRevision.objects.order_by("scope", "-number").distinct("scope")
    rows = list(newest.values_list("number", "scope", "values"))
    patches = {parse_scope(scope): msgspec.convert(values, PolicyPatch) for _, scope, values in rows}
    return PolicyBook(max((number for number, _, _ in rows), default=0), patches)


_books = _Books()


def engine_values(book: PolicyBook, engine: Engine) -> PolicyValues:
    return book.effective(*engine_scopes(name=engine.name, model=engine.model, role=engine.role))


def acks() -> QuerySet[PolicyAck]:
    return PolicyAck.objects.order_by("kind", "enforcer")


def num_overdue_acks(now: datetime) -> int:
    """How many enforcers have not confirmed the newest revision in time."""
    return PolicyAck.objects.filter(revision_id=newest_number(), acked_at=None, sent_at__lt=now - ACK_WITHIN).count()


def ack_state(ack: PolicyAck, *, now: datetime) -> AckState:
    """Worked out on reading, so that it is right whether or not any timer ran."""
    if ack.acked_at is None:
        return AckState.WAITING if now - ack.sent_at <= ACK_WITHIN else AckState.UNACKNOWLEDGED
    drifted = ack_drift(ack)
    if not drifted:
        return AckState.ACKED
    return AckState.UNSUPPORTED if set(drifted) <= set(ack.unsupported_fields) else AckState.DRIFTED


def ack_drift(ack: PolicyAck) -> tuple[str, ...]:
    """The fields in which the enforcer's values differ from what it was told; none before it answers."""
    if ack.values is None:
        return ()
    return drifted_fields(msgspec.convert(ack.expected, PolicyValues), msgspec.convert(ack.values, PolicyValues))
