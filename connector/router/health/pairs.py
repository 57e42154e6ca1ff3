"""Pairs of engines between which no KV gets across, though each of them serves others well."""

import time
from collections import OrderedDict
from collections.abc import Callable

from connector.protocol import Decision
from connector.router.fleet import Fleet
from connector.router.health.breaker import Breaker, Signal

MAX_PAIRS = 4096

_BROKEN = frozenset((Decision.TRANSFER_FAILED, Decision.TIMEOUT))
_WORKING = frozenset((Decision.PULLED, Decision.TRIMMED_PREFIX_DIVERGED))


class Pairs:
    """Quarantine by source and reader; nothing is kept of pairs that never failed. Changed on the event loop only.

    A pair is quarantined when its transfers fail in a row, for a while that doubles each time; then one transfer is let
    through as a trial. Meanwhile the reader computes what it would have pulled. Other reasons to recompute, an expired
    lease or another prompt, say nothing about the way between two engines. A restart of either makes it another pair.
    """

    def __init__(
        self, fleet: Fleet, on_quarantine: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fleet = fleet
        self._on_quarantine = on_quarantine
        self._clock = clock
        self._breakers: OrderedDict[tuple[str, str], tuple[str, Breaker]] = OrderedDict()

    def is_out(self, source: str, reader: str) -> bool:
        """Whether no lease of ``source`` should be offered to ``reader`` now."""
        breaker = self._find(source, reader)
        return breaker is not None and breaker.is_ejected

    def out(self) -> list[str]:
        """``source>reader`` of each pair that isn't in use."""
        return sorted(f"{source}>{reader}" for source, reader in list(self._breakers) if self._is_open(source, reader))

    def start(self, source: str, reader: str) -> None:
        """The reader is offered a lease of the source. After a quarantine it is the trial."""
        breaker = self._find(source, reader)
        if breaker is not None:
            breaker.start()

    def note(self, source: str, reader: str, decision: Decision) -> None:
        """What became of an offer."""
        breaker = self._find(source, reader)
        if decision in _BROKEN:
            (breaker or self._add(source, reader)).fail(Signal.TRANSFER)
        elif decision in _WORKING and breaker is not None:
            breaker.succeed()

    def _find(self, source: str, reader: str) -> Breaker | None:
        if not self._breakers:
            return None
        incarnations, breaker = self._breakers.get((source, reader), ("", None))
        if breaker is not None and incarnations != self._incarnations(source, reader):
            del self._breakers[source, reader]
            return None
        return breaker

    def _is_open(self, source: str, reader: str) -> bool:
        breaker = self._find(source, reader)
        return breaker is not None and not breaker.is_closed

    def _add(self, source: str, reader: str) -> Breaker:
        breaker = Breaker(f"{source}>{reader}", self._clock, "pair")
        breaker.on_ejection = lambda _: self._on_quarantine()
        self._breakers[source, reader] = self._incarnations(source, reader), breaker
        if len(self._breakers) > MAX_PAIRS:
            self._breakers.popitem(last=False)
        return breaker

    def _incarnations(self, source: str, reader: str) -> str:
        engines = (self._fleet.get(source), self._fleet.get(reader))
        return ">".join(engine.incarnation if engine else "" for engine in engines)
