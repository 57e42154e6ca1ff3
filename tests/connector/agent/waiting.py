"""Waiting for a condition with a deadline, instead of sleeping for a guessed time."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], *, seconds: float = 20.0) -> None:
    """Returns as soon as ``condition()`` is true; fails the test when it isn't within ``seconds``."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + seconds
    while not condition():
        assert clock() < deadline, f"not within {seconds} s"
        await asyncio.sleep(0.005)
