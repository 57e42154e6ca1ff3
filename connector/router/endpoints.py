"""What the router answers on which path, and errors in OpenAI's shape for all the rest."""

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from connector.http import Request, Response, field
from connector.protocol import Role
from connector.router.assembly import Parts
from connector.router.errors import JSON, ApiError
from connector.router.exposition import CONTENT_TYPE
from connector.router.paths import SERVED, Mode, is_anthropic, why_refused
from connector.router.requests import Endpoint

Handler = Callable[[Request], Awaitable[Response | None]]

log = logging.getLogger(__name__)


ENGINES_PATHS = frozenset(path for (_, path), mode in SERVED.items() if mode in (Mode.TWO_LEGS, Mode.ONE_LEG))

_CODES = {
    408: "request_timeout",
    413: "request_too_large",
    417: "expectation_failed",
    431: "headers_too_large",
    501: "not_implemented",
    505: "http_version_not_supported",
}


class Doors:
    """Routes requests; the only place that turns exceptions into answers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.is_draining = False
        self.is_one_of_several = False
        self.has_fleet = False
        self.num_connections: Callable[[], int] = lambda: 0
        self.is_control_connected: Callable[[], bool] = lambda: False
        self._handlers: dict[str, dict[str, Handler]] = {
            **{endpoint.value: {"POST": self._turn_handler(endpoint)} for endpoint in Endpoint},
            **{path: {"POST": parts.asides.serve} for (_, path), mode in SERVED.items() if mode is Mode.ONE_LEG},
            "/v1/models": {"GET": self._list_models},
            "/healthz": {"GET": self._tell_health},
            "/readyz": {"GET": self._tell_readiness},
            "/metrics": {"GET": self._tell_metrics},
        }

    def admit(self, http: Request) -> Response | None:
        """Refuses by the head alone what no body would make right."""
        try:
            self._find(http)
            if http.path in ENGINES_PATHS:
                self._check_engines_may_be_asked(http)
        except ApiError as error:
            return self._refuse(http, error)
        return None

    def refuse(self, status: int, message: str, http: Request | None = None) -> Response:
        """The HTTP server's own refusals: bytes that are no request, or more of them than may be."""
        return self._refuse(http, ApiError(status, message, code=_CODES.get(status, "bad_request"), close=True))

    async def answer(self, http: Request) -> Response | None:
        """A response for every request, or none when the reply was relayed. Cancellation passes: the client left."""
        is_counted = False
        try:
            handler = self._find(http)
            if http.path in ENGINES_PATHS:
                self._parts.admission.enter(http.principal)
                is_counted = True
            return await handler(http)
        except ApiError as error:
            return self._refuse(http, error)
        except Exception:
            log.exception("event=request_failed path=%s", self._label(http.path))
            if http.is_answered:
                raise
            return self._refuse(http, ApiError(500, "The router failed on this request.", code="internal_error"))
        finally:
            if is_counted:
                self._parts.admission.leave(http)

    def _find(self, http: Request) -> Handler:
        methods = self._handlers.get(http.path)
        if methods is None:
            reason = why_refused(http.path)
            if reason:
                raise ApiError(501, f"{http.path[:256]} is not served here. {reason}", code="not_implemented")
            raise ApiError(404, f"Unknown request URL: {http.method} {http.path[:256]}.", code="unknown_url")
        handler = methods.get("GET" if http.method == "HEAD" else http.method)
        if handler is None:
            allowed = ", ".join(methods)
            raise ApiError(
                405,
                f"Not allowed: {http.method} on {http.path}; use {allowed}.",
                code="method_not_allowed",
                allow=allowed,
            )
        return handler

    def _check_engines_may_be_asked(self, http: Request) -> None:
        if self.is_draining:
            raise ApiError(503, "The router is shutting down.", code="draining", retry_after=1, close=True)
        if not self.has_fleet:
            raise ApiError(503, "The router doesn't know its fleet yet.", code="no_fleet", retry_after=1)
        http.principal, http.is_operator = self._parts.api_keys.holder_of(http.headers)
        self._parts.admission.check(http.principal)

    def _turn_handler(self, endpoint: Endpoint) -> Handler:
        return lambda http: self._parts.turns.serve(http, endpoint)

    async def _list_models(self, http: Request) -> Response:
        if self.has_fleet:
            self._parts.api_keys.holder_of(http.headers)
            await self._parts.models.refresh()
        return self._json(http, 200, self._parts.models.union())

    async def _tell_health(self, http: Request) -> Response:
        """The process works; what it can reach is told, not judged."""
        status = "draining" if self.is_draining else "ok"
        return self._json(http, 200, orjson.dumps({"status": status, **self._outlook()}))

    async def _tell_readiness(self, http: Request) -> Response:
        """200 while a turn would find a decode engine, else 503."""
        outlook = self._outlook()
        is_ready = not self.is_draining and outlook["decode_engines"] > 0
        return self._json(http, 200 if is_ready else 503, orjson.dumps({"ready": is_ready, **outlook}))

    async def _tell_metrics(self, http: Request) -> Response:
        if self.is_one_of_several:
            message = "Several processes share this port. Each has its metrics at a port of its own."
            raise ApiError(404, message, code="metrics_elsewhere")
        return self.metrics(http)

    def metrics(self, http: Request) -> Response:
        """Those of this process."""
        self._sample()
        return self._count(http, Response(200, self._parts.metrics.render(), [field("Content-Type", CONTENT_TYPE)]))

    def _outlook(self) -> dict[str, Any]:
        engines = [engine for engine in self._parts.fleet if engine.takes_turns]
        return {
            "prefill_engines": sum(engine.role is Role.PREFILL for engine in engines),
            "decode_engines": sum(engine.role is Role.DECODE for engine in engines),
            "engines_ejected": sorted(engine.name for engine in engines if not engine.health.is_closed),
            "pairs_quarantined": self._parts.pairs.out(),
            "feeds_connected": self._parts.feeds.num_connected,
            "control_connected": self.is_control_connected(),
            "policy_revision": self._parts.fleet.snapshot.revision,
        }

    def _sample(self) -> None:
        """Gauges that are cheaper to read when asked than to keep."""
        parts, metrics = self._parts, self._parts.metrics
        metrics.leases.set(len(parts.book))
        metrics.known_turns.set(len(parts.index))
        metrics.control_connected.set(self.is_control_connected())
        metrics.events_pending.set(parts.spool.num_pending)
        metrics.events_dropped.set(parts.spool.num_dropped)
        metrics.pairs_out.set(len(parts.pairs.out()))
        metrics.spans_dropped.set(parts.exporter.num_dropped if parts.exporter is not None else 0)
        metrics.in_flight.set(parts.admission.num_active)
        metrics.client_connections.set(self.num_connections())
        for file in parts.live:
            metrics.file_refused.labels(file.what).set(file.is_refused)
        metrics.engine_active.clear()
        metrics.engine_ejected.clear()
        for engine in parts.fleet:
            metrics.engine_active.labels(engine.name, engine.role.value).set(engine.num_active)
            metrics.engine_ejected.labels(engine.name, engine.role.value).set(not engine.health.is_closed)

    def _json(self, http: Request, status: int, body: bytes) -> Response:
        return self._count(http, Response(status, body, [JSON]))

    def _count(self, http: Request | None, response: Response) -> Response:
        path = self._label(http.path if http else "")
        self._parts.metrics.requests.labels(path, str(response.status)).inc()
        return response

    def _label(self, path: str) -> str:
        return path if path in self._handlers else "other"

    def _refuse(self, http: Request | None, error: ApiError) -> Response:
        """The error as an answer; turns that began are already counted and logged by their recorder."""
        response = error.to_response(http is not None and is_anthropic(http.path))
        if not error.request_id:
            self._count(http, response)
            path, method = (self._label(http.path), http.method[:16]) if http else ("other", "")
            entry = {"time": round(time.time(), 3), "path": path, "status": error.status}
            self._parts.access.write({**entry, "method": method, "error": error.code or ""})
        return response
