"""Hands one answer from the process that received it to the thread that waits for it, through Redis.

A channel layer's reply channel would do the same, but the pub/sub layer keeps a subscription per channel until the
process ends.
"""

from functools import cache
from uuid import UUID

import redis
from django.conf import settings

KEEP_SECONDS = 60


@cache
def _client() -> "redis.Redis":
    return redis.Redis.from_url(settings.REDIS_URL, decode_responses=True, socket_timeout=None)


def post(command_id: UUID, answer: str) -> None:
    """Leaves an answer for whoever waits; it vanishes if nobody takes it."""
    with _client().pipeline() as pipeline:
        pipeline.rpush(_key(command_id), answer)
        pipeline.expire(_key(command_id), KEEP_SECONDS)
        pipeline.execute()


def wait(command_id: UUID, seconds: float) -> str | None:
    """The answer, or ``None`` when none came within ``seconds``. Blocks this thread only."""
    taken = _client().blpop([_key(command_id)], timeout=seconds)
    return str(taken[1]) if taken else None


def _key(command_id: UUID) -> str:
    return f"backhaul:answer:{command_id}"
