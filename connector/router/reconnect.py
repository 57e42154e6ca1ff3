"""How long a client waits before it dials again."""

import random
from collections.abc import Iterator

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0


def delays(longest: float = LONGEST_DELAY_SECONDS) -> Iterator[float]:
    """Endless delays in seconds that double up to ``longest``, each jittered so that a fleet doesn't dial in step."""
    ceiling = FIRST_DELAY_SECONDS
    while True:
        yield ceiling * random.uniform(0.5, 1.0)  # noqa: S311
        ceiling = min(longest, ceiling * 2)
