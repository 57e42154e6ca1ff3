"""What a lease is expected to save: tokens that only it can supply, times the chance that anyone comes back for them.

The chance is learned from this engine's own sessions. Each idle interval of a lease, from its grant or last read, ends
with a return (a read, or the next turn, which supersedes it) or without one. Ages are cut at 1, 2, 4 … seconds. Of the
intervals that outlasted an age, the share that returned before the next cut is that bucket's hazard; the chance of a
return before the lease's end is one minus the product of what the hazards of the remaining buckets leave over. An
interval that was cut short without a return, by its TTL or an eviction, counts half for the bucket that it ended in, as
actuaries do it. Everything is pure and deterministic given the observations.
"""

import math

NUM_BUCKETS = 24
"""The last bucket begins at 2**22 seconds, 48 days."""
PRIOR_HAZARD = 0.3
PRIOR_WEIGHT = 8.0
"""Before anything was seen, three of ten return in each bucket: the longer idle, the fewer buckets are left."""
MEMORY = 4096.0
"""Intervals after which the old ones count half, so that the estimate follows the traffic."""


class ReturnOdds:
    """Returns by idle age, as seen so far."""

    def __init__(self) -> None:
        self._num_exposed = [0.0] * NUM_BUCKETS
        self._num_returned = [0.0] * NUM_BUCKETS
        self._curve: ReturnCurve | None = None

    def observe(self, idle_seconds: float, *, returned: bool) -> None:
        """One idle interval has ended at this age."""
        last = bucket_of(idle_seconds)
        for bucket in range(last):
            self._num_exposed[bucket] += 1.0
        self._num_exposed[last] += 1.0 if returned else 0.5
        self._num_returned[last] += returned
        self._curve = None
        if self._num_exposed[0] > MEMORY:
            self._forget()

    def curve(self) -> "ReturnCurve":
        """The estimate as of now."""
        if self._curve is None:
            self._curve = ReturnCurve(self._survival())
        return self._curve

    def _survival(self) -> list[float]:
        """``[bucket]``: the share of intervals that reach its beginning without a return."""
        shares = [1.0]
        for returned, exposed in zip(self._num_returned, self._num_exposed, strict=True):
            hazard = (returned + PRIOR_HAZARD * PRIOR_WEIGHT) / (exposed + PRIOR_WEIGHT)
            shares.append(shares[-1] * (1.0 - hazard))
        return shares

    def _forget(self) -> None:
        self._num_exposed = [count / 2 for count in self._num_exposed]
        self._num_returned = [count / 2 for count in self._num_returned]


class ReturnCurve:
    """One estimate, which later observations leave as it is."""

    def __init__(self, survival: list[float]) -> None:
        """``[bucket]``: the share of intervals that reach its beginning without a return."""
        self._chances = [
            [1.0 - survival[max(first, last) + 1] / survival[first] for last in range(NUM_BUCKETS)]
            for first in range(NUM_BUCKETS)
        ]

    def chance(self, idle_seconds: float, remaining_seconds: float) -> float:
        """Of a return before the lease ends, of one that was idle for so long; between 0 and 1."""
        return self._chances[bucket_of(idle_seconds)][bucket_of(idle_seconds + remaining_seconds)]


def bucket_of(idle_seconds: float) -> int:
    """0 below one second, then one more per doubling."""
    return min(NUM_BUCKETS - 1, math.frexp(idle_seconds)[1]) if idle_seconds >= 1.0 else 0


def tokens_saved(num_tokens: int, num_unique: int, num_blocks: int) -> float:
    """Of a lease's tokens, those in blocks that no other live lease holds: only with it are they lost."""
    return num_tokens * num_unique / num_blocks if num_blocks else 0.0
