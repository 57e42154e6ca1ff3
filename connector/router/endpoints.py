"""What the router answers on which path, and errors in OpenAI's shape for all the rest."""

import logging
import time
from asyncio import Task
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from connector.protocol import Role
from connector.router.assembly import Parts
from connector.router.errors import JSON_TYPE, ApiError
from connector.router.exposition import CONTENT_TYPE
from connector.router.request import Endpoint

CLIENT_CLOSED = 499

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

log = logging.getLogger(__name__)


class Doors:
    """Routes requests; the only place that turns exceptions into answers."""

    def __init__(self, parts: Parts, max_body_bytes: int) -> None:
        self._parts = parts
        self.is_draining = False
        self.has_fleet = False
        self._max_body_bytes = max_body_bytes
        self.is_control_connected: Callable[[], bool] = lambda: False
        self._handlers: dict[str, dict[str, Handler]] = {
            Endpoint.CHAT.value: {"POST": lambda http: self._serve_turn(http, Endpoint.CHAT)},
            Endpoint.COMPLETIONS.value: {"POST": lambda http: self._serve_turn(http, Endpoint.COMPLETIONS)},
            "/v1/models": {"GET": self._list_models},
            "/healthz": {"GET": self._tell_health},
            "/readyz": {"GET": self._tell_readiness},
            "/metrics": {"GET": self._tell_metrics},
        }

    def make_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: "Task[None]",
    ) -> web.BaseRequest:
        return web.BaseRequest(
            message, payload, protocol, writer, task, protocol._loop, client_max_size=self._max_body_bytes
        )

    async def answer(self, http: web.BaseRequest) -> web.StreamResponse:
        """A response for every request. Cancellation passes: the client left."""
        path = http.rel_url.path
        try:
            return await self._find(http, path)(http)
        except ApiError as error:
            return self._refuse(http, path, error)
        except ConnectionError as error:
            log.info("event=client_left path=%s error=%s", self._label(path), error)
            return web.Response(status=CLIENT_CLOSED)
        except Exception:
            log.exception("event=request_failed path=%s", self._label(path))
            if http.writer.output_size > 0:
                self._cut_off(http)
                return web.Response(status=500)
            return self._refuse(http, path, ApiError(500, "The router failed on this request.", code="internal_error"))

    def _find(self, http: web.BaseRequest, path: str) -> Handler:
        methods = self._handlers.get(path)
        if methods is None:
            raise ApiError(404, f"Unknown request URL: {http.method} {path[:256]}.", code="unknown_url")
        handler = methods.get(http.method)
        if handler is None:
            allowed = ", ".join(methods)
            raise ApiError(405, f"Not allowed: {http.method} on {path}; use {allowed}.", code="method_not_allowed")
        return handler

    async def _serve_turn(self, http: web.BaseRequest, endpoint: Endpoint) -> web.StreamResponse:
        if self.is_draining:
            raise ApiError(503, "The router is shutting down.", code="draining", retry_after=1, close=True)
        if not self.has_fleet:
            raise ApiError(503, "The router doesn't know its fleet yet.", code="no_fleet", retry_after=1)
        return await self._parts.turns.serve(http, endpoint)

    async def _list_models(self, http: web.BaseRequest) -> web.StreamResponse:
        if self.has_fleet:
            self._parts.api_keys.tenant_of(http.headers)
            await self._parts.models.refresh()
        return self._json(http, 200, self._parts.models.union())

    async def _tell_health(self, http: web.BaseRequest) -> web.StreamResponse:
        """The process works; what it can reach is told, not judged."""
        status = "draining" if self.is_draining else "ok"
        return self._json(http, 200, orjson.dumps({"status": status, **self._outlook()}))

    async def _tell_readiness(self, http: web.BaseRequest) -> web.StreamResponse:
        """200 while a turn would find a decode engine, else 503."""
        outlook = self._outlook()
        is_ready = not self.is_draining and outlook["decode_engines"] > 0
        return self._json(http, 200 if is_ready else 503, orjson.dumps({"ready": is_ready, **outlook}))

    async def _tell_metrics(self, http: web.BaseRequest) -> web.StreamResponse:
        self._sample()
        response = web.Response(body=self._parts.metrics.render(), headers={"Content-Type": CONTENT_TYPE})
        return self._count(http, response)

    def _outlook(self) -> dict[str, Any]:
        engines = [engine for engine in self._parts.fleet if engine.takes_turns]
        return {
            "prefill_engines": sum(engine.role is Role.PREFILL for engine in engines),
            "decode_engines": sum(engine.role is Role.DECODE for engine in engines),
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
        metrics.engine_active.clear()
        for engine in parts.fleet:
            metrics.engine_active.labels(engine.name, engine.role.value).set(engine.num_active)

    def _json(self, http: web.BaseRequest, status: int, body: bytes) -> web.StreamResponse:
        return self._count(http, web.Response(status=status, body=body, content_type=JSON_TYPE))

    def _count(self, http: web.BaseRequest, response: web.Response) -> web.Response:
        self._parts.metrics.requests.labels(self._label(http.rel_url.path), str(response.status)).inc()
        return response

    def _label(self, path: str) -> str:
        return path if path in self._handlers else "other"

    def _refuse(self, http: web.BaseRequest, path: str, error: ApiError) -> web.StreamResponse:
        """The error as an answer; turns that began are already counted and logged by their recorder."""
        response = error.to_response()
        if not error.request_id:
            self._count(http, response)
            entry = {"time": round(time.time(), 3), "path": self._label(path), "status": error.status}
            self._parts.access.write({**entry, "method": http.method[:16], "error": error.code or ""})
        return response

    def _cut_off(self, http: web.BaseRequest) -> None:
        if http.transport is not None:
            http.transport.close()
