"""Reads and writes of tables from async tests, on a thread as the application does it."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from channels.db import database_sync_to_async

T = TypeVar("T")

DEADLINE_SECONDS = 5.0


async def ask(work: Callable[[], T]) -> T:
    """What ``work`` returns; its transaction, if it has one, is over by then."""
    return await database_sync_to_async(work, thread_sensitive=False)()


async def eventually(read: Callable[[], T], expected: T) -> None:
    """Reads again until the tables show what was ``expected``."""
    found = await ask(read)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while found != expected:
                await asyncio.sleep(0.02)
                found = await ask(read)
    except TimeoutError:
        assert found == expected
