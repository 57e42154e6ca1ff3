"""Whether an engine is taken: in use, ejected for a while, or on trial."""

import logging
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

log = logging.getLogger(__name__)

FAILURES_TO_EJECT = 3
"""In a row, of those that may be the request's own fault."""

FIRST_EJECTION_SECONDS = 1.0
LONGEST_EJECTION_SECONDS = 60.0
"""Each ejection lasts twice as long as the one before."""

CALM_SECONDS = 120.0
"""An engine that was well for so long starts with a short ejection again."""

DOUBT_SECONDS = 1.0
"""An engine's server listens some seconds after its connector is ready."""

TRIAL_SECONDS = 10.0
"""How long a trial keeps others away. Longer answers go on, but they prove nothing in time."""


RAMP_SECONDS = 30.0
"""How long an engine that came back takes until it gets its whole share of turns."""

LEAST_SHARE = 0.1


class Signal(StrEnum):
    """How an engine failed. The first three say that it serves nobody; the others have to repeat."""

    CONNECT = "connect"
    TLS = "tls"
    SILENT = "silent"
    RESET = "reset"
    STATUS = "status"
    TRUNCATED = "truncated"
    TRANSFER = "transfer"


_OF_REASONS = {"connect": Signal.CONNECT, "tls": Signal.TLS, "timeout": Signal.SILENT, "reset": Signal.RESET}

_CONCLUSIVE = frozenset((Signal.CONNECT, Signal.TLS, Signal.SILENT))


class Failure(Protocol):
    """``reason``: ``connect``, ``tls``, ``timeout`` or ``reset``."""

    reason: str


def signal_of(failure: Failure) -> Signal:
    return _OF_REASONS[failure.reason]


def signal_of_status(status: int, *, asks_to_wait: bool) -> Signal | None:
    """Absent for what is no sign of sickness: a served request, the client's own fault, or being busy (a 503 that says
    when to come again)."""
    return Signal.STATUS if status >= 500 and not (status == 503 and asks_to_wait) else None


class Breaker:
    """One engine's, or that of a pair of engines. Changed on the event loop only. ``clock``: monotonic seconds.

    An ejected engine is taken only if there is no other, so nothing here keeps the last one of a model from serving.
    When its time is over one request is let through at a time: its success ends the ejection, its failure makes a
    longer one.
    """

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic, kind: str = "engine") -> None:
        self._name = name
        self._kind = kind
        self._clock = clock
        self._num_failures = 0
        self._num_ejections = 0
        self._ejected_until: float | None = None
        self._trial_until = 0.0
        self._well_since = 0.0
        self._returned_at = float("-inf")
        self.heard_at = float("-inf")
        """When the engine last gave a sign of life."""

        self.on_ejection: Callable[[Signal], None] | None = None

    @property
    def silent_seconds(self) -> float:
        """Since the engine last gave a sign of life; infinite before the first one."""
        return self._clock() - self.heard_at

    @property
    def is_closed(self) -> bool:
        """In use; neither ejected nor on trial."""
        return self._ejected_until is None

    @property
    def is_ejected(self) -> bool:
        """To be avoided now: its time isn't over, or somebody else is trying it."""
        if self._ejected_until is None:
            return False
        now = self._clock()
        return now < self._ejected_until or now < self._trial_until

    @property
    def share(self) -> float:
        """Of the turns that it would get by its cost: less than 1 for a while after it came back."""
        return min(1.0, max(LEAST_SHARE, (self._clock() - self._returned_at) / RAMP_SECONDS))

    @property
    def is_suspect(self) -> bool:
        """It failed, too few times to be ejected, and has served nothing since."""
        return self._num_failures > 0

    def hear(self) -> None:
        """A sign of life. It makes no failure undone: a server that listens says nothing about its engine."""
        self.heard_at = self._clock()

    def start(self) -> None:
        """A request goes to the engine. After an ejection it is the trial."""
        if self._ejected_until is not None:
            now = self._clock()
            if now >= self._ejected_until and now >= self._trial_until:
                self._trial_until = now + TRIAL_SECONDS

    def succeed(self) -> None:
        """The engine served a request, or refused it for the client's fault."""
        self.heard_at = self._clock()
        self._num_failures = 0
        if self._ejected_until is not None:
            self._ejected_until, self._trial_until = None, 0.0
            self._well_since = self._returned_at = self.heard_at
            log.info("event=%s_returns %s=%s", self._kind, self._kind, self._name)

    def note(self, signal: Signal | None) -> None:
        """What an answer told; absent: the engine is well."""
        if signal is None:
            self.succeed()
        else:
            self.fail(signal)

    def fail(self, signal: Signal) -> None:
        """What is in flight when an engine fails, fails with it: that counts as one failure."""
        now = self._clock()
        if self._ejected_until is not None:
            if now >= self._ejected_until:
                self._eject(signal, now)
            return
        self._num_failures += 1
        if signal in _CONCLUSIVE or self._num_failures >= FAILURES_TO_EJECT:
            if now - self._well_since > CALM_SECONDS:
                self._num_ejections = 0
            self._eject(signal, now)

    def doubt(self) -> None:
        """The engine says that it is back: it is avoided for a moment, and then on trial."""
        if self._ejected_until is None:
            self._ejected_until = self._clock() + DOUBT_SECONDS

    def _eject(self, signal: Signal, now: float) -> None:
        seconds = min(FIRST_EJECTION_SECONDS * 2**self._num_ejections, LONGEST_EJECTION_SECONDS)
        self._num_ejections += 1
        self._num_failures = 0
        self._ejected_until, self._trial_until = now + seconds, 0.0
        kind, name = self._kind, self._name
        log.warning("event=%s_ejected %s=%s signal=%s seconds=%g", kind, kind, name, signal.value, seconds)
        if self.on_ejection is not None:
            self.on_ejection(signal)
