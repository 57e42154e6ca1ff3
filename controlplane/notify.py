"""Tells open dashboards that rows changed, after the transaction that changed them has committed.

A message names rows, never carries them: a dashboard fetches what it shows, so a lost or repeated message costs a
refetch and nothing else.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from django.db import transaction

from controlplane.broadcast import Message, broadcast

DASHBOARD_GROUP = "dashboard"
KINDS = frozenset(
    {"engine", "agent", "router", "pair", "policy", "ack", "placement", "session", "turn", "transfer", "operation"}
)
MAX_IDS_PER_MESSAGE = 200


class _Changes:
    """What one transaction changed; sent as few messages when it commits."""

    def __init__(self) -> None:
        self.ids: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def send(self) -> None:
        broadcast((DASHBOARD_GROUP, message) for message in self._messages())

    def _messages(self) -> Iterator[Message]:
        for kind, ids in self.ids.items():
            ordered = list(ids)
            for start in range(0, len(ordered), MAX_IDS_PER_MESSAGE):
                batch = ordered[start : start + MAX_IDS_PER_MESSAGE]
                yield {"type": "dashboard.changed", "kind": kind, "ids": batch}


def changed(kind: str, ids: Iterable[object]) -> None:
    """Announces rows of ``kind`` to dashboards on commit; at once outside a transaction.

    Calls within one transaction are sent together. A channel layer that is away costs nothing but the news: dashboards
    read everything when they connect again.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind that dashboards know")
    changes = _pending() or _Changes()
    for row_id in ids:
        changes.ids[kind][str(row_id)] = None
    if _pending() is not changes:
        transaction.on_commit(changes.send)


def _pending() -> _Changes | None:
    """The changes already waiting for this transaction's commit: none after a rollback, which drops its callbacks."""
    for _, callback, _ in transaction.get_connection().run_on_commit:
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, _Changes):
            return owner
    return None
