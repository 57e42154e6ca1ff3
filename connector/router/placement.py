"""Places a turn: its session and number, the lease that it may reuse, the policy that it carries."""

import math
from collections.abc import Sequence

import msgspec
import orjson

from connector.protocol import MAX_REPLACED_LEASES, Decision, PolicyPatch, PolicyValues
from connector.router.chain import mark_turn, pack_chain, thin
from connector.router.claims.outbox import ClaimOutbox
from connector.router.difference import Comparison, compare
from connector.router.errors import bad_request
from connector.router.fleet import Fleet
from connector.router.index import TurnIndex
from connector.router.keyring import KeyUse, SessionKeyring
from connector.router.known import HeldLease, KnownTurn, NewTurn
from connector.router.leases import LeaseBook
from connector.router.matching import Awaited, Match, Matcher, Prompt
from connector.router.metrics import Metrics
from connector.router.policy import patch_for_engines, resolve_for_router
from connector.router.requests import Endpoint, TurnRequest
from connector.router.requests.endpoint import SEQUENCES_OF_THEIR_OWN
from connector.router.rewriting import has_rewritten, pack_parts
from connector.router.session import new_session_id
from connector.router.sessions import Sessions, SpanRef
from connector.router.tracing import TurnTrace, decide_sampling

NOTICE_WAIT_SECONDS = 0.05


class Placement(msgspec.Struct, frozen=True):
    """Decided once, before any engine is asked. ``chain`` is what the envelope carries.

    ``holder`` is the decode engine that has, or lately had, the KV of this session. ``is_sequence``: one prompt and
    one reply, so that an envelope can speak for it. ``records_reply``: another session began with the same prompt, so
    only the reply will tell the two apart. ``replaces``: leases of the session whose history this turn rewrites;
    ``comparison``: how the prompt differs from that of the offered lease. ``num_common``: hashes of the chain that the
    lease's prompt has too; ``is_continued``: that is all of it, so that its reply comes next in this one;
    ``owns_lease``: it is of this session.
    """

    session_id: str
    salt: str
    index: int
    parent_turn_id: str
    parent_span: SpanRef | None
    lease: HeldLease | None
    withheld: Decision | None
    num_common: int
    is_continued: bool
    holder: str
    is_sequence: bool
    chain: tuple[str, ...]
    records_reply: bool
    policy: PolicyValues
    patch: PolicyPatch | None
    replaces: tuple[HeldLease, ...] = ()
    comparison: Comparison | None = None
    owns_lease: bool = False

    @property
    def grants_lease(self) -> bool:
        """The decode engine will hold the turn's KV, as far as the router knows the policy."""
        return self.is_sequence and self.policy.bidirectional_kv_xfer and self.policy.decoder_kv_blocks_ttl > 0


class Found(msgspec.Struct, frozen=True):
    """What a prompt matches under one key; ``use`` is the key that the turn's ids, chain and salt come from.

    ``chain``: the prompt's hashes as they travel.
    """

    use: KeyUse
    prompt: Prompt
    chain: Sequence[str]
    match: Match

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """By a lease that can be offered, then by the client's own session, then by what is common; else all equal."""
        source = self.match.source
        if source is None:
            return False, False, 0
        return True, source.session_id == self.prompt.session_id, self.match.num_common


def choose(founds: list[Found]) -> Found:
    """The key under which the turn goes on; ``founds`` are newest first, and the newest wins unless it has less.

    The conversation goes on whichever key it is known under, and so does the reason why its lease is gone.
    """
    if len(founds) == 1:
        return founds[0]
    best = max(founds, key=lambda found: found.rank)
    for other in founds:
        best.match.joined = best.match.joined or other.match.joined
        if best.match.lost in (None, Decision.NO_PLACEMENT):
            best.match.lost = other.match.lost or best.match.lost
    return best


def _prompt(use: KeyUse, tenant: str, request: TurnRequest, model: str) -> tuple[Prompt, list[str]]:
    session_id = request.session_id
    if not session_id and request.client_key:
        session_id = use.sessions.session_id(tenant, request.client_key)
    if request.messages is not None:
        member = "input" if request.endpoint is Endpoint.RESPONSES else "messages"
        try:
            parts = use.hasher.parts(request.messages)
            member = "tools"
            chain = use.hasher.messages(request.endpoint.name.lower(), tenant, model, request.root, parts)
        except orjson.JSONEncodeError:
            # JSON that can be read, 1,024 levels deep, but not written again, 254 levels deep.
            raise bad_request(f"'{member}' is nested too deeply.", member) from None
        packed = pack_chain(chain)
        return Prompt(tenant, session_id, packed, request.endpoint, request.messages, pack_parts(parts)), chain
    chain = [] if request.prompt is None else use.hasher.text(tenant, model, request.prompt)
    return Prompt(tenant, session_id, pack_chain(chain), request.endpoint), chain


class Placer:
    """The only writer of turns into the index."""

    def __init__(
        self,
        fleet: Fleet,
        index: TurnIndex,
        sessions: Sessions,
        book: LeaseBook,
        keyring: SessionKeyring,
        metrics: Metrics,
        claims: ClaimOutbox,
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._sessions = sessions
        self._book = book
        self._keyring = keyring
        self._metrics = metrics
        self._claims = claims
        self._matcher = Matcher(index, fleet)

    async def place(self, turn_id: str, tenant: str, request: TurnRequest, model: str, trace: TurnTrace) -> Placement:
        """The turn's placement; decides the trace's sampling.

        Waits up to 50 ms, and only for a lease notice that is about to come.
        """
        found = await self._find(tenant, request, model)
        prompt, match, session_id = found.prompt, found.match, found.prompt.session_id
        if not session_id:
            session_id = match.joined.session_id if match.joined else new_session_id()
        if match.joined:
            match.joined.continued_by = prompt.tail
        if match.source:
            self._index.touch(match.source)
        policy = resolve_for_router(self._fleet.snapshot, model, tenant, session_id)
        decide_sampling(trace, policy.trace_sampling)
        is_sequence = request.one_leg not in SEQUENCES_OF_THEIR_OWN
        return self._settle(turn_id, found, session_id, policy, is_sequence, trace)

    def expect_notice(self, turn_id: str, engine: str) -> None:
        """The decode leg starts: its end will bring a lease notice, if the engine's feed is heard and prompt."""
        turn, source = self._index.get(turn_id), self._fleet.get(engine)
        if turn is None or source is None:
            return
        turn.engine = engine
        self._claims.decode(turn_id, engine)
        is_prompt = source.feed_state is not None and not source.is_late_with_notices
        if is_prompt and turn.live is not None and not turn.has_lease:
            turn.live.notice.expect()

    def finish(self, turn_id: str, served: bool, reply: bytes, num_prompt_tokens: int) -> None:
        """The turn ended. One that wasn't served leaves nothing to extend, unless a lease of it is known: the turn
        before it may then be continued by another one in the same session."""
        self._claims.end(turn_id, served, reply, num_prompt_tokens)
        turn = self._index.get(turn_id)
        if turn is None:
            return
        live, turn.num_prompt_tokens = turn.live, num_prompt_tokens
        parent_turn_id = ""
        if live is not None:
            live.is_running, live.reply = False, reply
            parent_turn_id, live.parent_turn_id = live.parent_turn_id, ""
        if not served:
            turn.settle()
            parent = self._index.get(parent_turn_id) if parent_turn_id else None
            if parent is not None and parent.continued_by == turn.tail:
                parent.continued_by = b""
            if not turn.has_lease:
                self._index.remove(turn)
                return
        self._index.rest(turn.slot)
        self._book.tidy(turn)

    async def _find(self, tenant: str, request: TurnRequest, model: str) -> Found:
        """Looks under every key of the file; there is a second one only while a rotation is under way."""
        founds = []
        for use in self._keyring.uses():
            prompt, chain = _prompt(use, tenant, request, model)
            founds.append(Found(use, prompt, chain, await self._match(prompt)))
        return choose(founds)

    async def _match(self, prompt: Prompt) -> Match:
        match = self._matcher.match(prompt)
        if match.awaited is None:
            return match
        arrived = await match.awaited.notice.wait(NOTICE_WAIT_SECONDS)
        self._metrics.notice_waits.labels("arrived" if arrived else "timeout").inc()
        if not arrived:
            self._give_up(match.awaited)
        return self._matcher.match(prompt, may_wait=False)

    def _give_up(self, awaited: Awaited) -> None:
        """A notice that is this late may never come: nobody waits for this engine until it gives notice again."""
        awaited.notice.settle()
        engine = self._fleet.get(awaited.engine)
        if engine is not None:
            engine.is_late_with_notices = True

    def _settle(
        self,
        turn_id: str,
        found: Found,
        session_id: str,
        policy: PolicyValues,
        is_sequence: bool,
        trace: TurnTrace,
    ) -> Placement:
        prompt, match = found.prompt, found.match
        turns = self._index.of_session(session_id)
        parent = self._sessions.last(session_id, turns)
        holder = _holder(match, turns, session_id)
        index = self._sessions.start_turn(session_id, turn_id, parent, trace.ref if trace.is_sampled else None)
        lease, withheld = _offer(match, policy)
        is_continued = match.is_continued_by(prompt)
        owns_lease = match.source is not None and match.source.is_of(session_id)
        comparison = compare(match.source, prompt) if match.source and lease else None
        replaces = _rewritten(prompt, turns) if is_sequence else ()
        has_twin = not prompt.session_id and any(twin.session_id != session_id for twin in match.twins)
        chain = thin(found.chain)
        if is_sequence:
            parent_turn_id = match.joined.turn_id if match.joined else ""
            kept = prompt.chain if len(chain) == len(found.chain) else pack_chain(chain)
            new = NewTurn(turn_id, session_id, prompt.tenant, index, kept, True, prompt.parts, parent_turn_id)
            self._index.add(new)
            self._claims.start(new)
        return Placement(
            session_id=session_id,
            salt=found.use.sessions.cache_salt(prompt.tenant),
            index=index,
            parent_turn_id=parent.last_turn_id if parent else "",
            parent_span=parent.last_span if parent else None,
            lease=lease,
            withheld=withheld,
            num_common=match.num_common,
            is_continued=is_continued,
            owns_lease=owns_lease,
            holder=holder,
            is_sequence=is_sequence,
            chain=mark_turn(index, chain),
            records_reply=has_twin,
            policy=policy,
            patch=patch_for_engines(self._fleet.snapshot, prompt.tenant, session_id),
            replaces=replaces,
            comparison=comparison,
        )


def _offer(match: Match, policy: PolicyValues) -> tuple[HeldLease | None, Decision | None]:
    """The lease that the turn may reuse, or why there is none."""
    if not policy.bidirectional_kv_xfer:
        return None, Decision.DISABLED
    lease = match.source.lease if match.source else None
    return lease, None if lease else match.lost or Decision.NO_PLACEMENT


def _rewritten(prompt: Prompt, turns: list[KnownTurn]) -> tuple[HeldLease, ...]:
    """Leases of the session whose history no later turn will extend. Pinned ones are their operator's."""
    if not prompt.parts:
        return ()
    held = [turn for turn in turns if turn.has_lease and turn.tenant == prompt.tenant and not turn.is_running]
    dead = [turn for turn in held if not math.isinf(turn.deadline) and has_rewritten(turn.parts, prompt.parts)]
    return tuple(lease for lease in (turn.lease for turn in dead[:MAX_REPLACED_LEASES]) if lease)


def _holder(match: Match, turns: list[KnownTurn], session_id: str) -> str:
    """A start that sessions share draws none of them to the engine of another: only what it saves counts."""
    if match.source is not None and match.source.is_of(session_id):
        return match.source.holder[0]
    if match.joined is not None and match.joined.is_of(session_id):
        return match.joined.engine
    return next((turn.engine for turn in turns if turn.engine), "")
