"""Who may begin: bounds on what is in flight in this process, in all, per tenant, and per engine.

A request that would be one too many is answered 429 at once: what waited in the router would hold its body and time out
at the client. Counted from the whole request's arrival until its reply is out.
"""

import math
import sys
import time

from connector.http import Request
from connector.protocol import Role
from connector.router.errors import ApiError, no_engine
from connector.router.fleet import Engine, Fleet
from connector.router.metrics import Metrics

LONGEST_RETRY_SECONDS = 60

FRESH_SHARE = 0.1
"""Weight of the latest turn in the mean: about the last twenty count."""

_MESSAGES = {
    "process": "This router has as many requests in flight as it may have",
    "tenant": "Your tenant has as many requests in flight as it may have",
    "prefill": "Every prefill engine of the model has as many requests as it may have",
    "decode": "Every decode engine of the model has as many requests as it may have",
}
"""By the ``reason`` of the metric."""


class Admission:
    """Synchronous and O(1). 0 for a limit means none. ``enter`` must be followed by ``leave``, whatever happens."""

    def __init__(self, max_turns: int, max_tenant_turns: int, metrics: Metrics) -> None:
        self._max_turns = max_turns or sys.maxsize
        self._max_tenant_turns = max_tenant_turns or sys.maxsize
        self._metrics = metrics
        self._num_by_tenant: dict[str, int] = {}
        self._mean_seconds = 1.0
        self.num_active = 0

    def check(self, tenant: str) -> None:
        """Raises ``ApiError`` 429 while a limit is reached."""
        if self.num_active >= self._max_turns:
            raise self.refusal("process")
        if self._num_by_tenant.get(tenant, 0) >= self._max_tenant_turns:
            raise self.refusal("tenant")

    def enter(self, tenant: str) -> None:
        """Counts a request, or raises as ``check`` does."""
        self.check(tenant)
        self.num_active += 1
        self._num_by_tenant[tenant] = self._num_by_tenant.get(tenant, 0) + 1

    def leave(self, http: Request) -> None:
        """Only what an engine's reply was relayed to tells how long turns take: errors are quick."""
        tenant = http.principal
        self.num_active -= 1
        left = self._num_by_tenant[tenant] - 1
        if left:
            self._num_by_tenant[tenant] = left
        else:
            del self._num_by_tenant[tenant]
        if http.is_answered:
            self._mean_seconds += FRESH_SHARE * (time.monotonic() - http.arrived - self._mean_seconds)

    @property
    def num_tenants(self) -> int:
        """Those with requests in flight."""
        return len(self._num_by_tenant)

    @property
    def retry_seconds(self) -> int:
        """After as long as a turn takes, places are free, if not taken by others."""
        return min(LONGEST_RETRY_SECONDS, max(1, math.ceil(self._mean_seconds)))

    def refusal(self, reason: str) -> ApiError:
        """The answer to one too many, counted."""
        self._metrics.admission_refusals.labels(reason).inc()
        seconds = self.retry_seconds
        message = f"{_MESSAGES[reason]}; try again in {seconds} s."
        return ApiError(429, message, code=f"{reason}_busy", retry_after=seconds)


class EngineRoom:
    """Whether the engines of a model may take one more turn. Costs nothing while engines have no limit."""

    def __init__(self, fleet: Fleet, admission: Admission) -> None:
        self._fleet = fleet
        self._admission = admission

    def check(self, model: str, keeper: Engine | None, needs_prefill: bool) -> None:
        """Raises ``ApiError`` 429 before a turn is placed that no engine could take.

        Without any prefill engine decode computes the prompt. While those that exist are full it doesn't: decode would
        be overrun next.
        """
        if not self._fleet.has_limit:
            return
        if keeper.is_full if keeper is not None else self._is_full(Role.DECODE, model):
            raise self._admission.refusal("decode")
        if needs_prefill and self._is_full(Role.PREFILL, model):
            raise self._admission.refusal("prefill")

    def shortage(self, model: str) -> ApiError:
        """Why there is no decode engine for a turn."""
        if self._fleet.has_limit and self._is_full(Role.DECODE, model):
            return self._admission.refusal("decode")
        return no_engine(f"No decode engine is ready for model {model!r}.")

    def _is_full(self, role: Role, model: str) -> bool:
        engines = self._fleet.engines_serving(role, model)
        return bool(engines) and all(engine.is_full for engine in engines)
