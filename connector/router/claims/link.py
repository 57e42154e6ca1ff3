"""Whether the claims' two ways, out and in, are connected: told once per change, in the log and as a metric."""

import logging
import time

from connector.router.metrics import Metrics

log = logging.getLogger(__name__)


class Link:
    """``server`` is what the log may name: no credentials."""

    def __init__(self, server: str, metrics: Metrics) -> None:
        self._server = server
        self._metrics = metrics
        self._is_up = {"out": False, "in": False}
        self._was_told: bool | None = None
        self._listening_since: float | None = None

    @property
    def is_up(self) -> bool:
        return all(self._is_up.values())

    @property
    def listening_seconds(self) -> float:
        """How long other routers have been heard without a break; 0 while they aren't."""
        return time.monotonic() - self._listening_since if self._listening_since is not None else 0.0

    def rise(self, way: str) -> None:
        self._set(way, True, "")

    def fall(self, way: str, error: Exception) -> None:
        self._set(way, False, type(error).__name__)

    def _set(self, way: str, is_up: bool, reason: str) -> None:
        self._is_up[way] = is_up
        if way == "in":
            self._listening_since = time.monotonic() if is_up else None
        self._metrics.claims_connected.set(self.is_up)
        if self.is_up and self._was_told is not True:
            self._was_told = True
            log.info("event=claims_shared server=%s", self._server)
        elif not is_up and self._was_told is not False:
            self._was_told = False
            log.warning("event=claims_unshared server=%s reason=%s (turns go on without them)", self._server, reason)
