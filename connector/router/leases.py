"""The leases of decode engines, exactly as the agents' feeds tell them; the feed is the truth."""

import logging
import math
import time
from collections.abc import Callable, Iterable

from connector.protocol import Decision, LeaseEnded, LeaseKind, LeaseOffer, LeaseRenewed, LeaseState
from connector.router.chain import split_mark
from connector.router.index import HeldLease, KnownTurn, TurnIndex
from connector.router.sessions import Sessions

log = logging.getLogger(__name__)

ABANDONED_SECONDS = 120.0
MAX_ABANDONED = 10_000

MAX_BARE_TURNS = 8
"""Branches of a session that are remembered without a lease."""

Release = Callable[[str, str, str], object]
"""``release(engine, key, reason)`` asks the engine's agent to let go what ``key`` holds."""

_ENDED_REASONS = {LeaseState.EXPIRED: Decision.EXPIRED, LeaseState.LOST: Decision.SOURCE_LOST}


class LeaseBook:
    """Applies feed messages to the index; releases at once what abandoned turns are granted late."""

    def __init__(self, index: TurnIndex, sessions: Sessions, release: Release) -> None:
        self._index = index
        self._sessions = sessions
        self._release = release
        self._by_engine: dict[str, dict[str, KnownTurn]] = {}
        self._abandoned: dict[str, float] = {}

    def __len__(self) -> int:
        return sum(len(leases) for leases in self._by_engine.values())

    def replace_engine(self, engine: str, incarnation: str, offers: Iterable[LeaseOffer]) -> None:
        """A feed snapshot: exactly these leases are held by the engine now."""
        ordered = sorted(offers, key=lambda offer: offer.lease.turn_id)
        held_now = {offer.lease.lease_id for offer in ordered}
        for lease_id in [i for i in self._by_engine.get(engine, {}) if i not in held_now]:
            self._end(engine, lease_id, Decision.SOURCE_LOST)
        for offer in ordered:
            self.grant(engine, incarnation, offer)

    def drop_engine(self, engine: str, keep_incarnation: str = "") -> None:
        """The engine is gone, or only leases of ``keep_incarnation`` still exist on it."""
        for lease_id, turn in list(self._by_engine.get(engine, {}).items()):
            if turn.lease is None or not keep_incarnation or turn.lease.incarnation != keep_incarnation:
                self._end(engine, lease_id, Decision.SOURCE_LOST)

    def grant(self, engine: str, incarnation: str, offer: LeaseOffer) -> None:
        lease = offer.lease
        if self._is_abandoned(lease.turn_id):
            self._release(engine, lease.lease_id, "cancelled")
            return
        if lease.kind is not LeaseKind.SESSION:
            return
        turn = self._index.get(lease.turn_id) or self._rebuild(offer)
        turn.lease = HeldLease(
            lease_id=lease.lease_id,
            engine=engine,
            incarnation=incarnation,
            offer=offer.offer,
            deadline=_deadline(lease.remaining_seconds, lease.pinned),
            num_tokens=lease.num_tokens,
        )
        turn.engine = engine
        turn.ended = None
        self._by_engine.setdefault(engine, {})[lease.lease_id] = turn
        turn.notice.settle()
        self.tidy(turn)

    def renew(self, engine: str, renewed: LeaseRenewed) -> None:
        change = renewed.lease
        turn = self._by_engine.get(engine, {}).get(change.lease_id)
        if turn is None or turn.lease is None:
            log.info("event=renewal_of_unknown_lease engine=%s lease=%s", engine, change.lease_id)
            return
        turn.lease.offer = renewed.offer
        turn.lease.deadline = _deadline(change.remaining_seconds, change.pinned)

    def end(self, engine: str, ended: LeaseEnded) -> None:
        self._end(engine, ended.lease_id, _ENDED_REASONS.get(ended.state, Decision.NO_PLACEMENT))

    def abandon(self, turn_id: str) -> None:
        """Whatever an engine still grants to this turn is released when its notice comes."""
        now = time.monotonic()
        self._abandoned[turn_id] = now + ABANDONED_SECONDS
        while self._abandoned:
            oldest = next(iter(self._abandoned))
            if len(self._abandoned) <= MAX_ABANDONED and self._abandoned[oldest] > now:
                break
            del self._abandoned[oldest]

    def forget(self, turns: Iterable[KnownTurn]) -> None:
        """The index let these turns go; so does the book."""
        for turn in turns:
            if turn.lease is not None:
                self._by_engine.get(turn.lease.engine, {}).pop(turn.lease.lease_id, None)

    def _is_abandoned(self, turn_id: str) -> bool:
        return self._abandoned.get(turn_id, 0.0) > time.monotonic()

    def _rebuild(self, offer: LeaseOffer) -> KnownTurn:
        """The turn behind a lease that this process didn't route: after a restart, or another router's."""
        lease = offer.lease
        index, chain = split_mark(offer.chain)
        turn = KnownTurn(lease.turn_id, lease.session_id, lease.tenant, index, chain)
        self.forget(self._index.add(turn))
        self._sessions.observe(lease.session_id, index, lease.turn_id)
        return turn

    def _end(self, engine: str, lease_id: str, reason: Decision) -> None:
        turn = self._by_engine.get(engine, {}).pop(lease_id, None)
        if turn is None or turn.lease is None or turn.lease.lease_id != lease_id:
            return
        turn.lease = None
        turn.ended = reason
        if any(later.chain[: len(turn.chain)] == turn.chain for later in self._later(turn)):
            self._index.remove(turn)

    def _later(self, turn: KnownTurn) -> list[KnownTurn]:
        return [t for t in self._index.of_session(turn.session_id) if t is not turn and not t.is_running]

    def tidy(self, turn: KnownTurn) -> None:
        """Forgets turns of the session that have no lease and nothing that this one lacks, and all but a few others."""
        num_bare = 0
        for other in self._index.of_session(turn.session_id):
            if other is turn or other.lease or other.is_running or other.notice.is_outstanding:
                continue
            num_bare += 1
            if num_bare > MAX_BARE_TURNS or turn.chain[: len(other.chain)] == other.chain:
                self._index.remove(other)


def _deadline(remaining_seconds: float, pinned: bool) -> float:
    return math.inf if pinned else time.monotonic() + remaining_seconds
