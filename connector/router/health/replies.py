"""What the head of an engine's answer tells of the engine."""

from connector.http import Reply
from connector.router.health.breaker import Signal, signal_of_status


def signal_of_reply(reply: Reply) -> Signal | None:
    """Absent for an engine that is well."""
    return signal_of_status(reply.status, asks_to_wait=reply.headers.raw(b"retry-after") is not None)
