"""How long a client waits before it dials again, and how often it says why."""

import logging
import random
from collections.abc import Iterator

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0


class Complaints:
    """Logs each new reason once until ``forget``: a peer that stays away for a day doesn't fill the log."""

    def __init__(self, log: logging.Logger, level: int) -> None:
        self._log = log
        self._level = level
        self._told: set[str] = set()

    def tell(self, event: str, peer: str, reason: str) -> None:
        is_new = reason not in self._told
        self._told.add(reason)
        self._log.log(self._level if is_new else logging.DEBUG, "event=%s peer=%s reason=%s", event, peer, reason)

    def forget(self) -> None:
        self._told.clear()


def delays(longest: float = LONGEST_DELAY_SECONDS) -> Iterator[float]:
    """Endless delays in seconds that double up to ``longest``, each jittered so that a fleet doesn't dial in step."""
    ceiling = FIRST_DELAY_SECONDS
    while True:
        yield ceiling * random.uniform(0.5, 1.0)  # noqa: S311
        ceiling = min(longest, ceiling * 2)
