"""Tells open dashboards that rows changed, after the transaction that changed them has committed.

A message names rows, never carries them: a dashboard fetches what it shows, so a lost or repeated message costs a
refetch and nothing else.
"""

from collections import defaultdict
from collections.abc import Iterable

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

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
        async_to_sync(self._send)()

    async def _send(self) -> None:
        layer = get_channel_layer()
        for kind, ids in self.ids.items():
            ordered = list(ids)
            for start in range(0, len(ordered), MAX_IDS_PER_MESSAGE):
                message = {
                    "type": "dashboard.changed",
                    "kind": kind,
                    "ids": ordered[start : start + MAX_IDS_PER_MESSAGE],
                }
                await layer.group_send(DASHBOARD_GROUP, message)


def changed(kind: str, ids: Iterable[object]) -> None:
    """Announces rows of ``kind`` to dashboards on commit; at once outside a transaction.

    Calls within one transaction are sent together. A channel layer that is down is logged by Django and costs nothing
    else (``robust``): dashboards refetch when they reconnect.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not a kind that dashboards know")
    changes = _pending() or _Changes()
    for row_id in ids:
        changes.ids[kind][str(row_id)] = None
    if _pending() is not changes:
        transaction.on_commit(changes.send, robust=True)


def _pending() -> _Changes | None:
    """The changes already waiting for this transaction's commit: none after a rollback, which drops its callbacks."""
    for _, callback, _ in transaction.get_connection().run_on_commit:
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, _Changes):
            return owner
    return None
