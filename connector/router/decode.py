"""The decode leg: the client's own request on D, whose reply is relayed untouched."""

import logging
from collections.abc import Callable

from connector.http import Pairs, Reply, ReplyTooLargeError, Request, SourceBrokenError, field, gather, relay
from connector.protocol import Role
from connector.router.answers import pairs_to_client
from connector.router.anthropic_errors import in_anthropic_shape
from connector.router.earlier import EarlierResponses
from connector.router.endings import OPENINGS, Ending
from connector.router.errors import ApiError, no_engine, untrusted
from connector.router.fleet import Engine
from connector.router.health.breaker import Signal, signal_of
from connector.router.health.replies import signal_of_reply
from connector.router.legs import LegSigner, decode_body, leg_headers
from connector.router.live import Source
from connector.router.metrics import Metrics
from connector.router.placement import Placer
from connector.router.replies import digest_of_reply
from connector.router.requests import Endpoint
from connector.router.streaming import EVENT_STREAM, Observer
from connector.router.turnstate import DECODE_REASONS, Outcome, Turn
from connector.router.upstream import EngineFailedError, Upstream

MAX_ERROR_BYTES = 1024 * 1024

TRY_ELSEWHERE = frozenset((502, 503))
"""Statuses by which an engine says that it didn't take the request."""

log = logging.getLogger(__name__)

Alternative = Callable[[Engine], Engine | None]
"""Another engine for the same turn, if there is one."""


class DecodeLeg:
    """Runs the leg; until the first byte is out it may move to a second engine, once."""

    def __init__(
        self,
        upstream: Upstream,
        signer: LegSigner,
        engine_key: Source[str],
        placer: Placer,
        metrics: Metrics,
        earlier: EarlierResponses,
    ) -> None:
        self._upstream = upstream
        self._signer = signer
        self._engine_key = engine_key
        self._placer = placer
        self._metrics = metrics
        self._earlier = earlier

    async def run(self, http: Request, turn: Turn, first: Engine, other: Alternative) -> None:
        """The reply is out when this returns; ``ApiError`` while nothing was sent. ``first`` is reserved by the caller.

        A reply that breaks off later closes the client's connection: it must not look complete.
        """
        turn.decode.begin()
        try:
            reply = await self._open(turn, first, other)
            turn.decode_envelope = ""
            turn.request.let_go()
            await self._relay(http, turn, reply)
        finally:
            turn.decode.finish()

    def prepare(self, turn: Turn) -> None:
        """Signs the leg's envelope as it is when P gives an offer, which nearly every P does."""
        if turn.placement.is_sequence:
            turn.decode_envelope = self._envelope(turn)

    async def _open(self, turn: Turn, first: Engine, other: Alternative) -> Reply:
        """The reply, with its first bytes, of the first engine that gives any, of at most two tries.

        A second try is safe: until a byte is out, the client can't tell which engine computed it, and an offer that the
        first engine already used up only means that the second one recomputes. An engine that had only closed a kept
        connection is asked again itself if there is no other.
        """
        try:
            reply = await self._ask(turn, first)
            second = other(first) if reply.status in TRY_ELSEWHERE else None
            if second is None:
                return reply
            reply.close()
            reason = "status"
        except EngineFailedError as error:
            if not error.is_stale:
                self._note(turn, first, error)
            second = other(first) if error.reason != "timeout" else None
            if second is None and not error.is_stale:
                raise _answer(error) from error
            second, reason = second or first, error.reason
        self._metrics.retries.labels(reason).inc()
        turn.reserve(second)
        try:
            return await self._ask(turn, second)
        except EngineFailedError as error:
            self._note(turn, second, error)
            raise _answer(error) from error

    async def _ask(self, turn: Turn, engine: Engine) -> Reply:
        trace = turn.trace
        traceparent = trace.traceparent(trace.decode_id)
        base = turn.base_headers.to_decode
        fields = leg_headers(base, self._engine_key.current, turn.turn_id, traceparent, trace.tracestate)
        if turn.placement.grants_lease:
            self._placer.expect_notice(turn.turn_id, engine.name)
        reply = await self._upstream.post(engine.url(turn.request.endpoint), self._body(turn, engine), fields)
        if reply.status == 200:
            engine.health.hear()
        else:
            engine.health.note(signal_of_reply(reply))
        return reply

    def _body(self, turn: Turn, engine: Engine) -> bytes:
        response_id = ""
        if turn.request.endpoint is Endpoint.RESPONSES:
            response_id = self._earlier.name(turn.tenant, turn.placement.session_id, turn.turn_id, engine)
        if not turn.placement.is_sequence:
            return decode_body(turn.request, turn.salt, None, None, response_id)
        offer = turn.reply.offer if turn.reply and turn.reply.offer else None
        envelope = turn.decode_envelope if turn.alone is None else ""
        return decode_body(turn.request, turn.salt, envelope or self._envelope(turn), offer, response_id)

    def _envelope(self, turn: Turn) -> str:
        return self._signer.sign(
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

    async def _relay(self, http: Request, turn: Turn, reply: Reply) -> None:
        pairs = pairs_to_client(http, turn, reply)
        is_events = reply.headers.get("Content-Type", "").startswith(EVENT_STREAM)
        is_plain = reply.headers.raw(b"content-encoding") is None
        if reply.status >= 400 and turn.request.endpoint is Endpoint.MESSAGES:
            pairs = await _translate(reply, pairs)
        observer = Observer(
            is_events, turn.placement.records_reply and is_plain, OPENINGS.get(turn.request.endpoint, b"")
        )
        turn.http_status = reply.status
        try:
            await relay(reply, http, pairs, observer.see)
            self._conclude(turn, observer, is_plain)
        except SourceBrokenError as error:
            turn.decode_error = str(error)
            self._note_ending(turn, Signal.TRUNCATED)
            log.warning("event=reply_broken turn=%s engine=%s error=%s", turn.turn_id, _name(turn), error)
        finally:
            turn.first_event_at = observer.first_event_at
            turn.num_bytes = observer.num_bytes
            reply.close()

    def _conclude(self, turn: Turn, observer: Observer, is_plain: bool) -> None:
        if turn.http_status >= 400:
            turn.decode_error = f"status {turn.http_status}"
            return
        turn.outcome = Outcome.OK
        if not is_plain:
            self._note_ending(turn, None)
            return
        ending = Ending(turn.request.endpoint, observer.tail(), observer.is_events)
        if ending.num_prompt_tokens:
            turn.num_prompt_tokens = ending.num_prompt_tokens
        turn.num_output_tokens = ending.num_output_tokens
        turn.num_decode_cached = ending.num_cached_tokens
        self._note_ending(turn, Signal.TRUNCATED if ending.missing else None)
        if ending.missing:
            turn.outcome = Outcome.ERROR
            turn.decode_error = ending.missing
        if turn.placement.records_reply:
            turn.reply_digest = digest_of_reply(turn.request.endpoint, observer.whole(), observer.is_events)

    def _note_ending(self, turn: Turn, signal: Signal | None) -> None:
        if turn.decode_engine is not None:
            turn.decode_engine.health.note(signal)

    def _note(self, turn: Turn, engine: Engine, error: EngineFailedError) -> None:
        turn.decode_error = str(error)
        engine.health.fail(signal_of(error))
        log.warning("event=decode_failed turn=%s engine=%s error=%s", turn.turn_id, engine.name, error)


async def _translate(reply: Reply, pairs: Pairs) -> Pairs:
    """An error for a client of Anthropic's, in its shape; the fields that fit it. Raises ``ApiError`` while it isn't
    whole."""
    try:
        reply.body = in_anthropic_shape(reply.status, await gather(reply, MAX_ERROR_BYTES))
    except (SourceBrokenError, ReplyTooLargeError) as error:
        reply.close()
        raise ApiError(502, "The decode engine broke off within its error.", code="engine_failed") from error
    kept = [pair for pair in pairs if pair[0] != b"content-length"]
    return [*kept, field("Content-Length", str(len(reply.body)))]


def _name(turn: Turn) -> str:
    return turn.decode_engine.name if turn.decode_engine else ""


def _answer(error: EngineFailedError) -> ApiError:
    if error.reason == "connect":
        return no_engine("The decode engine cannot be reached.")
    if error.reason == "tls":
        return untrusted("decode engine")
    if error.reason == "timeout":
        return ApiError(504, "The decode engine did not answer in time.", code="engine_timeout")
    return ApiError(502, "The decode engine broke off before its reply.", code="engine_failed")
