"""The prefill leg: one token computed on P, whose KV decode then reads."""

import logging
from collections.abc import Callable

import msgspec

from connector.http import Reply, ReplyTooLargeError, Target
from connector.protocol import LegReply, Role
from connector.router.fleet import Engine
from connector.router.health.breaker import Signal, signal_of
from connector.router.health.replies import signal_of_reply
from connector.router.legs import LegSigner, leg_headers, prefill_body
from connector.router.live import Source
from connector.router.turnstate import Alone, Turn
from connector.router.upstream import EngineFailedError, Upstream

MAX_REPLY_BYTES = 16 * 1024 * 1024
"""An offer holds digests of the whole prompt: 4 MiB at most, beside one token."""

log = logging.getLogger(__name__)


class _Params(msgspec.Struct, frozen=True):
    backhaul: LegReply | None = None


class _Usage(msgspec.Struct, frozen=True):
    """OpenAI's chat and completions, or responses and Anthropic, who counts cached tokens apart."""

    prompt_tokens: int = 0
    input_tokens: int = 0
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    @property
    def num_prompt_tokens(self) -> int:
        cached = (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)
        return self.prompt_tokens or self.input_tokens + cached


class _Reply(msgspec.Struct, frozen=True):
    kv_transfer_params: _Params | None = None
    usage: _Usage | None = None


_decode_reply = msgspec.json.Decoder(_Reply).decode


class PrefillLeg:
    """Runs the leg. Whatever the outcome, decode follows, unless the engine refused the request."""

    def __init__(self, upstream: Upstream, signer: LegSigner, engine_key: Source[str]) -> None:
        self._upstream = upstream
        self._signer = signer
        self._engine_key = engine_key

    async def run(self, turn: Turn, engine: Engine, meanwhile: Callable[[], None]) -> Reply | None:
        """Fills ``turn.reply``, or ``turn.alone`` when P gave no offer.

        ``meanwhile`` is called while P works. A 4xx of the engine is returned: it is the client's answer, with status,
        headers and body as they came.
        """
        turn.prefill_engine = engine
        engine.begin_leg()
        turn.prefill.begin()
        try:
            return await self._ask(turn, engine, meanwhile)
        except (EngineFailedError, ReplyTooLargeError) as error:
            engine.health.fail(signal_of(error) if isinstance(error, EngineFailedError) else Signal.STATUS)
            self._fail(turn, engine, str(error))
            return None
        finally:
            turn.prefill.finish()
            engine.end_leg()

    async def _ask(self, turn: Turn, engine: Engine, meanwhile: Callable[[], None]) -> Reply | None:
        trace, lease = turn.trace, turn.placement.lease
        traceparent = trace.traceparent(trace.prefill_id)
        base = turn.base_headers.to_prefill
        fields = leg_headers(base, self._engine_key.current, turn.turn_id, traceparent, trace.tracestate)
        body = prefill_body(turn.request, turn.salt, self._envelope(turn, traceparent), lease.offer if lease else None)
        reply = await self._post(engine.url(turn.request.endpoint), body, fields, meanwhile)
        turn.prefill_status = reply.status
        engine.health.note(signal_of_reply(reply))
        if reply.status == 200:
            self._read(turn, reply.body)
        elif 400 <= reply.status < 500:
            return reply
        else:
            self._fail(turn, engine, f"status {reply.status}")
        return None

    async def _post(self, url: Target, body: bytes, fields: bytes, meanwhile: Callable[[], None]) -> Reply:
        """Asks again, once, when a kept connection turns out closed: a prefill that ran twice changes nothing."""
        try:
            return await self._upstream.post(url, body, fields, MAX_REPLY_BYTES, meanwhile)
        except EngineFailedError as error:
            if not error.is_stale:
                raise
            return await self._upstream.post(url, body, fields, MAX_REPLY_BYTES)

    def _envelope(self, turn: Turn, traceparent: str) -> str:
        """Without the chain: a handoff lease is read once and never looked up."""
        return self._signer.sign(
            Role.PREFILL,
            tenant=turn.tenant,
            session_id=turn.placement.session_id,
            turn_id=turn.turn_id,
            traceparent=traceparent,
            reason=turn.placement.withheld,
            patch=turn.placement.patch,
            chain=(),
        )

    def _read(self, turn: Turn, body: bytes) -> None:
        """A reply without an offer is fine (its one token may end the text): decode then computes the prompt."""
        try:
            reply = _decode_reply(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("event=prefill_reply_unreadable turn=%s error=%s", turn.turn_id, error)
            turn.alone, turn.prefill_error = Alone.PREFILL_FAILED, "unreadable reply"
            return
        if reply.usage is not None:
            turn.num_prompt_tokens = reply.usage.num_prompt_tokens
        turn.reply = reply.kv_transfer_params.backhaul if reply.kv_transfer_params else None
        if turn.reply is None or not turn.reply.offer:
            turn.alone = Alone.NO_OFFER

    def _fail(self, turn: Turn, engine: Engine, error: str) -> None:
        turn.alone, turn.prefill_error = Alone.PREFILL_FAILED, error
        log.warning("event=prefill_failed turn=%s engine=%s error=%s", turn.turn_id, engine.name, error)
