"""The prefill leg: one token computed on P, whose KV decode then reads."""

import asyncio
import logging
from dataclasses import dataclass

import aiohttp
import msgspec

from connector.protocol import LegReply, Role
from connector.router.fleet import Engine
from connector.router.legs import LegSigner, leg_headers, prefill_body
from connector.router.turnstate import Alone, Turn
from connector.router.upstream import EngineFailedError, ReplyTooLargeError, Upstream, read_whole

MAX_REPLY_BYTES = 16 * 1024 * 1024
"""An offer holds digests of the whole prompt: 4 MiB at most, beside one token."""

MAX_ERROR_BYTES = 1024 * 1024

log = logging.getLogger(__name__)


class _Params(msgspec.Struct, frozen=True):
    backhaul: LegReply | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0


class _Reply(msgspec.Struct, frozen=True):
    kv_transfer_params: _Params | None = None
    usage: _Usage | None = None


_decode_reply = msgspec.json.Decoder(_Reply).decode


@dataclass(frozen=True, slots=True)
class Refusal:
    """A 4xx of the prefill engine is the client's answer: status, headers and body as they came."""

    response: aiohttp.ClientResponse
    body: bytes


class PrefillLeg:
    """Runs the leg. Whatever the outcome, decode follows, unless the engine refused the request."""

    def __init__(self, upstream: Upstream, signer: LegSigner, engine_key: str, limit_seconds: float) -> None:
        self._upstream = upstream
        self._signer = signer
        self._engine_key = engine_key
        self._limit_seconds = limit_seconds

    async def run(self, turn: Turn, engine: Engine) -> Refusal | None:
        """Fills ``turn.reply``, or ``turn.alone`` when P gave no offer. A refusal goes to the client."""
        turn.prefill_engine = engine
        engine.num_active += 1
        engine.num_picked += 1
        turn.prefill.begin()
        try:
            async with asyncio.timeout(self._limit_seconds):
                return await self._ask(turn, engine)
        except TimeoutError:
            self._fail(turn, engine, f"no answer within {self._limit_seconds} s")
            return None
        except (EngineFailedError, ReplyTooLargeError) as error:
            if isinstance(error, EngineFailedError) and error.reason != "timeout":
                engine.avoid_for_a_while()
            self._fail(turn, engine, str(error))
            return None
        finally:
            turn.prefill.finish()
            engine.num_active -= 1

    async def _ask(self, turn: Turn, engine: Engine) -> Refusal | None:
        traceparent = turn.trace.traceparent(turn.trace.prefill_id)
        headers = leg_headers(turn.base_headers, self._engine_key, turn.turn_id, traceparent, turn.trace.tracestate)
        headers["Accept-Encoding"] = "identity"
        lease = turn.placement.lease
        body = prefill_body(turn.request, turn.salt, self._envelope(turn, traceparent), lease.offer if lease else None)
        response = await self._upstream.post(engine.url(turn.request.endpoint), body, headers)
        try:
            turn.prefill_status = response.status
            if response.status == 200:
                self._read(turn, await read_whole(response, MAX_REPLY_BYTES))
                return None
            if 400 <= response.status < 500:
                return Refusal(response, await read_whole(response, MAX_ERROR_BYTES))
            self._fail(turn, engine, f"status {response.status}")
            return None
        finally:
            response.release()

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
            turn.num_prompt_tokens = reply.usage.prompt_tokens
        turn.reply = reply.kv_transfer_params.backhaul if reply.kv_transfer_params else None
        if turn.reply is None or not turn.reply.offer:
            turn.alone = Alone.NO_OFFER

    def _fail(self, turn: Turn, engine: Engine, error: str) -> None:
        turn.alone, turn.prefill_error = Alone.PREFILL_FAILED, error
        log.warning("event=prefill_failed turn=%s engine=%s error=%s", turn.turn_id, engine.name, error)
