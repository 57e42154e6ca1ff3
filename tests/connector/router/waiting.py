"""Waits for what must become true soon."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 20.0
POLL_SECONDS = 0.005


async def eventually(probe: Callable[[], T], what: str, seconds: float = DEADLINE_SECONDS) -> T:
    """The first truthy result of ``probe``; fails with ``what`` after the deadline."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        result = probe()
        if result:
            return result
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} s: {what}"
        await asyncio.sleep(POLL_SECONDS)
