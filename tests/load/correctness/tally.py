"""What a run counted, and the summary of it, for people and as JSON."""

import time
from collections import Counter
from typing import Any

import msgspec


class Tally:
    """Filled by everything that checks; one per run."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.num_histories = 0
        self.num_legs = 0
        self.num_recomputed = 0
        self.num_rechecked = 0
        self.num_fillers = 0
        self.changes: Counter[str] = Counter()
        self.fates: Counter[str] = Counter()
        self.decisions: dict[str, Counter[str]] = {"prefill": Counter(), "decode": Counter()}
        self.num_reused_tokens: Counter[str] = Counter()
        self.lease_ends: Counter[str] = Counter()
        self.races: Counter[str] = Counter()
        self.num_races = 0
        self.largest_difference = 0.0
        self.failures: list[dict[str, Any]] = []

    def note_difference(self, difference: float) -> None:
        self.largest_difference = max(self.largest_difference, difference)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def summary(self) -> dict[str, Any]:
        return {
            "histories": self.num_histories,
            "legs": self.num_legs,
            "recomputed": self.num_recomputed,
            "rechecked_without_params": self.num_rechecked,
            "turns_by_change": dict(self.changes.most_common()),
            "turns_by_fate_of_the_offered_lease": dict(self.fates.most_common()),
            "decisions": {leg: dict(counts.most_common()) for leg, counts in self.decisions.items()},
            "reused_tokens": dict(self.num_reused_tokens),
            "leases_ended": dict(self.lease_ends.most_common()),
            "races": {"releases": self.num_races, **dict(sorted(self.races.items()))},
            "largest_logprob_difference": self.largest_difference,
            "failures": self.failures,
            "seconds": round(self.seconds, 1),
        }

    def lines(self) -> list[str]:
        """Without the failures, each of which was said when it came up."""
        summary = {**self.summary(), "failures": len(self.failures)}
        return [f"  {name}: {msgspec.json.encode(value).decode()}" for name, value in summary.items()]
