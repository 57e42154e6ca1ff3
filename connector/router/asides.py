"""Requests that make no turn: token counts and the like, answered by one engine and relayed whole.

They leave no KV behind, so any engine of the model will do, and a second one may be asked when the first can't be
reached.
"""

import msgspec

from connector.http import Reply, ReplyTooLargeError, Request, Response, field
from connector.identity import uuid7
from connector.router.anthropic_errors import in_anthropic_shape
from connector.router.choice.chooser import least_busy
from connector.router.errors import ApiError, no_engine, untrusted
from connector.router.fleet import Engine, Fleet
from connector.router.headers import headers_to_client, headers_to_engine
from connector.router.health.breaker import signal_of
from connector.router.health.replies import signal_of_reply
from connector.router.inflate import plain_body
from connector.router.live import Source
from connector.router.metrics import Metrics
from connector.router.models import ServedModels
from connector.router.paths import is_anthropic
from connector.router.requests.members import model_of, split
from connector.router.requests.stripping import strip
from connector.router.upstream import EngineFailedError, Upstream

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""Token ids as JSON, with their texts, of the longest body that the router takes by default."""

_encode = msgspec.json.Encoder().encode


class Asides:
    """Serves them for the same models as turns."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        models: ServedModels,
        upstream: Upstream,
        metrics: Metrics,
        engine_key: Source[str],
        max_body_bytes: int,
    ) -> None:
        self._fleet = fleet
        self._models = models
        self._upstream = upstream
        self._metrics = metrics
        self._engine_key = engine_key
        self._max_body_bytes = max_body_bytes

    async def serve(self, http: Request) -> Response:
        """The engine's answer, or ``ApiError``. The client was admitted by the request's head."""
        fields = split(plain_body(http, self._max_body_bytes))
        strip(fields)
        model = await self._models.resolve(model_of(fields))
        first = self._choose(model, None)
        if first is None:
            raise no_engine(f"No engine is ready for model {model!r}.")
        request_id = str(uuid7())
        own = f"authorization: Bearer {self._engine_key.current}\r\nx-request-id: {request_id}\r\n".encode()
        reply = await self._ask(
            first, http.path, _encode(fields), headers_to_engine(http.headers).to_prefill + own, model
        )
        self._metrics.requests.labels(http.path, str(reply.status)).inc()
        is_error_of_anthropics = reply.status >= 400 and is_anthropic(http.path)
        body = in_anthropic_shape(reply.status, reply.body) if is_error_of_anthropics else reply.body
        pairs = [pair for pair in headers_to_client(reply.headers) if pair[0] != b"content-length"]
        if reply.headers.raw(b"x-request-id") is None:
            pairs.append(field("X-Request-Id", request_id))
        return Response(reply.status, body, pairs, reason=reply.reason)

    def _choose(self, model: str, but: Engine | None) -> Engine | None:
        ready = (engine for engine in self._fleet if engine.takes_turns and engine.serves(model))
        return least_busy(engine for engine in ready if engine is not but)

    async def _ask(self, engine: Engine, path: str, body: bytes, fields: bytes, model: str) -> Reply:
        """Of at most two tries, the second at another engine or over a new connection: nothing changes by asking."""
        try:
            return await self._ask_one(engine, path, body, fields)
        except EngineFailedError as error:
            if not error.is_stale:
                engine.health.fail(signal_of(error))
            second = engine if error.is_stale else self._choose(model, engine) if error.reason != "timeout" else None
            if second is None:
                raise _answer(error) from error
        try:
            return await self._ask_one(second, path, body, fields)
        except EngineFailedError as error:
            second.health.fail(signal_of(error))
            raise _answer(error) from error

    async def _ask_one(self, engine: Engine, path: str, body: bytes, fields: bytes) -> Reply:
        engine.begin_leg()
        try:
            reply = await self._upstream.post(engine.url(path), body, fields, MAX_REPLY_BYTES)
            engine.health.note(signal_of_reply(reply))
            return reply
        except ReplyTooLargeError:
            raise ApiError(502, "The engine's answer is too long.", code="engine_failed") from None
        finally:
            engine.end_leg()


def _answer(error: EngineFailedError) -> ApiError:
    if error.reason == "connect":
        return no_engine("The engine cannot be reached.")
    if error.reason == "tls":
        return untrusted("engine")
    if error.reason == "timeout":
        return ApiError(504, "The engine did not answer in time.", code="engine_timeout")
    return ApiError(502, "The engine broke off before its answer.", code="engine_failed")
