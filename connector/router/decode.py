"""The decode leg: the client's own request on D, whose reply is relayed untouched."""

import asyncio
import logging
from collections.abc import Callable

import aiohttp
from aiohttp import web

from connector.protocol import Role
from connector.router.errors import ApiError, no_engine
from connector.router.fleet import Engine
from connector.router.headers import headers_to_client
from connector.router.legs import LegSigner, decode_body, leg_headers
from connector.router.metrics import Metrics
from connector.router.placement import Placer
from connector.router.reply import digest_of_reply
from connector.router.silence import SilenceWatch
from connector.router.streaming import EVENT_STREAM, BrokenReplyError, Ending, Observer, relay
from connector.router.turnstate import DECODE_REASONS, Outcome, Turn
from connector.router.upstream import EngineFailedError, Upstream

TRY_ELSEWHERE = frozenset((502, 503))
"""Statuses by which an engine says that it didn't take the request."""

log = logging.getLogger(__name__)

Alternative = Callable[[Engine], Engine | None]
"""Another engine for the same turn, if there is one."""


class RelayedResponse(web.StreamResponse):
    """Headers go out together with the first bytes: one packet, and a retry is possible until then."""

    _send_headers_immediately = False


class DecodeLeg:
    """Runs the leg; until the first byte is out it may move to a second engine, once."""

    def __init__(
        self,
        upstream: Upstream,
        signer: LegSigner,
        engine_key: str,
        limit_seconds: float,
        watch: SilenceWatch,
        placer: Placer,
        metrics: Metrics,
    ) -> None:
        self._upstream = upstream
        self._signer = signer
        self._engine_key = engine_key
        self._limit_seconds = limit_seconds
        self._watch = watch
        self._placer = placer
        self._metrics = metrics

    async def run(self, http: web.BaseRequest, turn: Turn, first: Engine, other: Alternative) -> web.StreamResponse:
        """The finished response, or ``ApiError`` while nothing was sent. ``first`` is reserved by the caller.

        A reply that breaks off later closes the client's connection: it must not look complete.
        """
        turn.decode.begin()
        try:
            opened = await self._open(turn, first, other)
            return await self._relay(http, turn, *opened)
        finally:
            turn.decode.finish()

    async def _open(self, turn: Turn, first: Engine, other: Alternative) -> tuple[aiohttp.ClientResponse, bytes]:
        """Reply and first bytes of the first engine that gives any, of at most two.

        A second try is safe: until a byte is out, the client can't tell which engine computed it, and an offer that the
        first engine already used up only means that the second one recomputes.
        """
        body = self._body(turn)
        try:
            response, chunk = await self._ask(turn, first, body)
            second = other(first) if response.status in TRY_ELSEWHERE else None
            if second is None:
                return response, chunk
            response.close()
            reason = "status"
        except EngineFailedError as error:
            self._note(turn, first, error)
            second = other(first) if error.reason != "timeout" else None
            if second is None:
                raise _answer(error) from error
            reason = error.reason
        self._metrics.retries.labels(reason).inc()
        turn.reserve(second)
        try:
            return await self._ask(turn, second, body)
        except EngineFailedError as error:
            self._note(turn, second, error)
            raise _answer(error) from error

    async def _ask(self, turn: Turn, engine: Engine, body: bytes) -> tuple[aiohttp.ClientResponse, bytes]:
        traceparent = turn.trace.traceparent(turn.trace.decode_id)
        headers = leg_headers(turn.base_headers, self._engine_key, turn.turn_id, traceparent, turn.trace.tracestate)
        if turn.placement.grants_lease:
            self._placer.expect_notice(turn.turn_id, engine.name)
        url = engine.url(turn.request.endpoint)
        try:
            async with asyncio.timeout(self._limit_seconds):
                response = await self._upstream.post(url, body, headers)
                return response, await _first_bytes(response)
        except TimeoutError as error:
            raise EngineFailedError(url, "timeout", f"no byte within {self._limit_seconds} s") from error

    def _body(self, turn: Turn) -> bytes:
        if not turn.placement.is_sequence:
            return decode_body(turn.request, turn.salt, None, None)
        offer = turn.reply.offer if turn.reply and turn.reply.offer else None
        envelope = self._signer.sign(
            Role.DECODE,
            tenant=turn.tenant,
            session_id=turn.placement.session_id,
            turn_id=turn.turn_id,
            traceparent=turn.trace.traceparent(turn.trace.decode_id),
            reason=DECODE_REASONS[turn.alone] if turn.alone else None,
            patch=turn.placement.patch,
            chain=turn.placement.chain,
            replaces=tuple(lease.lease_id for lease in turn.placement.replaces),
        )
        return decode_body(turn.request, turn.salt, envelope, offer)

    async def _relay(
        self, http: web.BaseRequest, turn: Turn, response: aiohttp.ClientResponse, first: bytes
    ) -> web.StreamResponse:
        headers = headers_to_client(response.headers)
        headers.setdefault("X-Request-Id", turn.turn_id)
        is_events = headers.get("Content-Type", "").startswith(EVENT_STREAM)
        is_plain = "Content-Encoding" not in headers
        observer = Observer(is_events, turn.placement.records_reply and is_plain)
        sink = RelayedResponse(status=response.status, reason=response.reason, headers=headers)
        turn.http_status = response.status
        try:
            await sink.prepare(http)
            with self._watch.over(response, observer):
                await relay(response, first, sink, observer)
            self._conclude(turn, observer, is_plain)
            return sink
        except BrokenReplyError as error:
            turn.decode_error = str(error)
            log.warning("event=reply_broken turn=%s engine=%s error=%s", turn.turn_id, _name(turn), error)
            if http.transport is not None:
                http.transport.close()
            return sink
        finally:
            turn.first_event_at = observer.first_event_at
            turn.num_bytes = observer.num_bytes
            response.release()

    def _conclude(self, turn: Turn, observer: Observer, is_plain: bool) -> None:
        if turn.http_status >= 400:
            turn.decode_error = f"status {turn.http_status}"
            return
        turn.outcome = Outcome.OK
        if not is_plain:
            return
        ending = Ending(observer)
        if ending.num_prompt_tokens:
            turn.num_prompt_tokens = ending.num_prompt_tokens
        turn.num_output_tokens = ending.num_output_tokens
        if ending.has_error or not ending.is_complete:
            turn.outcome = Outcome.ERROR
            turn.decode_error = "error event" if ending.has_error else "stream ended without [DONE]"
        if turn.placement.records_reply:
            turn.reply_digest = digest_of_reply(observer.whole(), observer.is_events)

    def _note(self, turn: Turn, engine: Engine, error: EngineFailedError) -> None:
        turn.decode_error = str(error)
        if error.reason != "timeout":
            engine.avoid_for_a_while()
        log.warning("event=decode_failed turn=%s engine=%s error=%s", turn.turn_id, engine.name, error)


async def _first_bytes(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        response.close()
        raise EngineFailedError(response.url, "reset", str(error)) from error
    except asyncio.CancelledError:
        response.close()
        raise


def _name(turn: Turn) -> str:
    return turn.decode_engine.name if turn.decode_engine else ""


def _answer(error: EngineFailedError) -> ApiError:
    if error.reason == "connect":
        return no_engine("The decode engine cannot be reached.")
    if error.reason == "timeout":
        return ApiError(504, "The decode engine did not answer in time.", code="engine_timeout")
    return ApiError(502, "The decode engine broke off before its reply.", code="engine_failed")
