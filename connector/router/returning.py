"""The chance that a conversation comes back for a lease, learned from all that this router sees."""

from connector.benefit import ReturnCurve, ReturnOdds

OBSERVATIONS_PER_CURVE = 256
"""An estimate costs more than a turn should pay, and moves slowly."""

FOREVER_SECONDS = 1e9


class Returning:
    """Idle intervals in, chances out."""

    def __init__(self) -> None:
        self._odds = ReturnOdds()
        self._curve: ReturnCurve = self._odds.curve()
        self._num_observed = 0

    def observe(self, idle_seconds: float, *, returned: bool) -> None:
        self._odds.observe(max(0.0, idle_seconds), returned=returned)
        self._num_observed += 1
        if self._num_observed % OBSERVATIONS_PER_CURVE == 0:
            self._curve = self._odds.curve()

    def chance(self, idle_seconds: float, remaining_seconds: float) -> float:
        """Of a return before the lease ends; 0 once it has ended."""
        if remaining_seconds <= 0:
            return 0.0
        return self._curve.chance(max(0.0, idle_seconds), min(remaining_seconds, FOREVER_SECONDS))
