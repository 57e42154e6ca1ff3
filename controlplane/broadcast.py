"""Messages through the channel layer: at most once, and never at the cost of the work that sends them.

What must arrive is in the tables as well, for the next connect or heartbeat; so a layer that is away is logged, at most
every ten seconds, and forgotten.
"""

import logging
import time
from collections.abc import Iterable
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

LOG_EVERY_SECONDS = 10.0

Message = dict[str, Any]


class _OutageLog:
    """Keeps thousands of sockets from writing the same line."""

    def __init__(self) -> None:
        self._silent_until = 0.0

    def note(self, error: Exception) -> None:
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + LOG_EVERY_SECONDS
            logger.warning("event=channel_layer_away error=%r", str(error))


_outage = _OutageLog()


def broadcast(messages: Iterable[tuple[str, Message]]) -> None:
    """Sends ``(group, message)`` pairs now, in their order."""
    async_to_sync(_send)(list(messages))


def broadcast_on_commit(group: str, message: Message) -> None:
    """Sends when the transaction commits; at once outside of one."""
    transaction.on_commit(lambda: broadcast([(group, message)]))


async def _send(messages: list[tuple[str, Message]]) -> None:
    layer = get_channel_layer()
    try:
        for group, message in messages:
            await layer.group_send(group, message)
    except (RedisError, OSError) as error:
        _outage.note(error)
