"""One turn from the client's request to the last byte of its reply."""

import asyncio
import math
import time
from collections.abc import Callable

import msgspec

from connector.http import Reply, Request, Response
from connector.identity import uuid7_text
from connector.router.admission import EngineRoom
from connector.router.answers import refused_by_prefill
from connector.router.choice.chooser import Chooser
from connector.router.choice.learning import Learner
from connector.router.choice.plan import Plan
from connector.router.crossing import close_way, open_way
from connector.router.decode import DecodeLeg
from connector.router.earlier import EarlierResponses
from connector.router.errors import ApiError
from connector.router.fleet import Engine, Fleet
from connector.router.headers import headers_to_engine
from connector.router.health.pairs import Pairs
from connector.router.inflate import plain_body
from connector.router.leases import LeaseBook
from connector.router.metrics import Metrics
from connector.router.models import ServedModels
from connector.router.placement import Placer
from connector.router.prefill import PrefillLeg
from connector.router.recording import Recorder
from connector.router.requests import Endpoint, TurnRequest, parse_request
from connector.router.tracing import start_trace
from connector.router.turnstate import Alone, Lap, Outcome, Turn

CLIENT_CLOSED = 499
"""What the record says of a turn whose client left; nobody receives it."""

Release = Callable[[str, str, str], object]


class TurnRunner:
    """Serves turns. Every way out leaves no leg, no count and no hold behind."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        models: ServedModels,
        earlier: EarlierResponses,
        room: EngineRoom,
        placer: Placer,
        chooser: Chooser,
        learner: Learner,
        pairs: Pairs,
        book: LeaseBook,
        prefill: PrefillLeg,
        decode: DecodeLeg,
        recorder: Recorder,
        metrics: Metrics,
        release: Release,
        max_body_bytes: int,
    ) -> None:
        self._fleet = fleet
        self._models = models
        self._earlier = earlier
        self._room = room
        self._placer = placer
        self._chooser = chooser
        self._learner = learner
        self._pairs = pairs
        self._book = book
        self._prefill = prefill
        self._decode = decode
        self._recorder = recorder
        self._metrics = metrics
        self._release = release
        self._max_body_bytes = max_body_bytes
        self.num_active = 0

    async def serve(self, http: Request, endpoint: Endpoint) -> Response | None:
        """A response to send, none when the reply was relayed, or ``ApiError`` if nothing was sent."""
        request = parse_request(endpoint, plain_body(http, self._max_body_bytes), http.headers)
        http.body = b""
        model = await self._models.resolve(request.model)
        keeper: Engine | None = None
        if request.previous_response_id:
            keeper, session_id = self._earlier.find(http.principal, request.previous_response_id)
            request = request if request.client_key else msgspec.structs.replace(request, session_id=session_id)
        self._room.check(model, keeper, request.one_leg is None)
        turn = await self._begin(http, request, model)
        turn.keeper = keeper
        self._metrics.active_turns.inc()
        self.num_active += 1
        try:
            return await self._run(http, turn)
        except ApiError as error:
            turn.http_status = error.status
            error.request_id = turn.turn_id
            raise
        except asyncio.CancelledError:
            turn.outcome, turn.http_status = Outcome.CANCELLED, CLIENT_CLOSED
            raise
        finally:
            self._end(turn)

    async def _begin(self, http: Request, request: TurnRequest, model: str) -> Turn:
        tenant, started = http.principal, http.arrived
        started_ns = time.time_ns() - int((time.monotonic() - started) * 1e9)
        turn_id, trace, placing = uuid7_text(), start_trace(http.headers), Lap()
        headers = headers_to_engine(http.headers)
        placing.begin()
        placement = await self._placer.place(turn_id, tenant, request, model, trace)
        placing.finish()
        return Turn(
            turn_id=turn_id,
            tenant=tenant,
            request=request,
            model=model,
            trace=trace,
            placement=placement,
            salt=placement.salt,
            base_headers=headers,
            started=started,
            started_ns=started_ns,
            placing=placing,
        )

    async def _run(self, http: Request, turn: Turn) -> Response | None:
        chooser, placement = self._chooser, turn.placement
        plan = turn.plan = chooser.plan(turn.request, placement, turn.model)
        if turn.keeper is not None:
            decoder: Engine | None = chooser.keep(plan, turn.keeper)
        else:
            decoder = chooser.decode(plan, placement, turn.model)
        if decoder is None:
            raise self._room.shortage(turn.model)
        turn.reserve(decoder)
        if turn.request.one_leg is not None:
            turn.alone = Alone.ONE_LEG
        else:
            refusal = await self._prefill_if_possible(turn, plan, decoder)
            if refusal is not None:
                return refused_by_prefill(http, turn, refusal)
        await self._decode.run(http, turn, decoder, lambda first: self._other(turn, plan, first))
        return None

    async def _prefill_if_possible(self, turn: Turn, plan: Plan, decoder: Engine) -> Reply | None:
        if turn.placement.is_sequence and self._chooser.is_decode_local(plan, turn.placement):
            turn.alone = Alone.DECODE_LOCAL
            return None
        engine = self._chooser.prefill(plan, turn.placement, turn.model, decoder)
        if engine is None:
            turn.alone = Alone.NO_PREFILL_ENGINE
            return None
        lease = open_way(self._pairs, turn, engine)
        try:
            return await self._prefill.run(turn, engine, lambda: self._decode.prepare(turn))
        finally:
            self._chooser.end_prefill(plan, engine)
            if lease is not None:
                close_way(self._pairs, turn, lease, engine)

    def _other(self, turn: Turn, plan: Plan, first: Engine) -> Engine | None:
        if turn.keeper is not None:
            return None
        return self._chooser.decode(plan, turn.placement, turn.model, but=first)

    def _end(self, turn: Turn) -> None:
        self.num_active -= 1
        self._metrics.active_turns.dec()
        turn.unreserve()
        is_served = turn.outcome is Outcome.OK
        self._placer.finish(turn.turn_id, is_served, turn.reply_digest, turn.num_prompt_tokens)
        if is_served:
            self._let_rewritten_go(turn)
            self._let_moved_go(turn)
        else:
            self._let_go(turn)
        if is_served and turn.alone is Alone.PREFILL_FAILED and turn.prefill_engine is not None:
            self._release(turn.prefill_engine.name, turn.turn_id, "prefill_failed")
        self._learner.learn(turn)
        self._recorder.record(turn)

    def _let_rewritten_go(self, turn: Turn) -> None:
        """The decode engine supersedes its own leases by what the envelope says; other engines don't hear of it."""
        for lease in turn.placement.replaces:
            if turn.decode_engine is not None and lease.engine != turn.decode_engine.name:
                self._release(lease.engine, lease.lease_id, "rewritten")

    def _let_moved_go(self, turn: Turn) -> None:
        """The session has moved away from an engine that drains: what that engine held for it is of no more use there.

        Pinned leases are their operator's.
        """
        lease = turn.placement.lease
        if lease is None or not turn.placement.owns_lease:
            return
        if turn.decode_engine is None or lease.engine == turn.decode_engine.name:
            return
        if any(lease.lease_id == replaced.lease_id for replaced in turn.placement.replaces):
            return  # let go already
        left = self._fleet.get(lease.engine)
        if left is not None and left.facts.draining and turn.placement.grants_lease and lease.deadline != math.inf:
            self._release(lease.engine, lease.lease_id, "drained")

    def _let_go(self, turn: Turn) -> None:
        """What the engines may still hold for a turn that wasn't served is released, also if it is granted late."""
        self._book.abandon(turn.turn_id)
        reason = turn.outcome.value
        if turn.prefill_engine is not None and not 400 <= turn.prefill_status < 500:
            key = turn.reply.lease_id if turn.reply and turn.reply.lease_id else turn.turn_id
            self._release(turn.prefill_engine.name, key, reason)
        if turn.decode.start and turn.decode_engine is not None and turn.outcome is Outcome.CANCELLED:
            self._release(turn.decode_engine.name, turn.turn_id, reason)
