"""Ends replies that have gone silent, at no cost per chunk: one sweep looks at all of them now and then."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

from connector.router.streaming import Observer

MAX_SWEEP_SECONDS = 5.0


class _Watched:
    __slots__ = ("num_bytes", "observer", "response", "since")

    def __init__(self, response: aiohttp.ClientResponse, observer: Observer) -> None:
        self.response = response
        self.observer = observer
        self.num_bytes = -1
        self.since = time.monotonic()


class SilenceWatch:
    """Closes the connection of a reply that brought no byte for ``limit_seconds``; its reader then sees it break off.

    A reply that is held back by a slow client counts as silent too.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit = limit_seconds
        self._watched: set[_Watched] = set()

    @contextmanager
    def over(self, response: aiohttp.ClientResponse, observer: Observer) -> Iterator[None]:
        watched = _Watched(response, observer)
        self._watched.add(watched)
        try:
            yield
        finally:
            self._watched.discard(watched)

    async def run(self) -> None:
        """Sweeps for ever; cancel to stop."""
        while True:
            await asyncio.sleep(min(MAX_SWEEP_SECONDS, self._limit / 4))
            self._sweep(time.monotonic())

    def _sweep(self, now: float) -> None:
        for watched in self._watched:
            if watched.observer.num_bytes != watched.num_bytes:
                watched.num_bytes, watched.since = watched.observer.num_bytes, now
            elif now - watched.since > self._limit:
                watched.response.close()
