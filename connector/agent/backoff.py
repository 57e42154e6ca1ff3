"""Delays between connection attempts that grow and are jittered, so that a fleet doesn't reconnect in step."""

import random
import time
from collections.abc import Callable


class Backoff:
    """Equal jitter: each delay is drawn from the upper half of ``first * 2**attempt``, capped at ``cap`` seconds."""

    def __init__(self, first: float, cap: float, source: random.Random | None = None) -> None:
        self._first = first
        self._cap = cap
        self._source = source or random.SystemRandom()
        self._ceiling = first

    def next_delay(self) -> float:
        """Seconds to wait before the next attempt."""
        ceiling = self._ceiling
        self._ceiling = min(self._cap, ceiling * 2)
        return self._source.uniform(ceiling / 2, ceiling)

    def reset(self) -> None:
        self._ceiling = self._first


MAX_TOPICS = 256


class Occasionally:
    """Lets a repeated complaint through at once and then at most once per ``interval`` seconds and topic."""

    def __init__(self, interval: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._clock = clock
        self._last: dict[str, float] = {}

    def allows(self, topic: str) -> bool:
        now = self._clock()
        last = self._last.get(topic)
        if last is not None and now - last < self._interval:
            return False
        if len(self._last) >= MAX_TOPICS:
            self._last.clear()
        self._last[topic] = now
        return True
