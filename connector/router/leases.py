"""The leases of decode engines, exactly as the agents' feeds tell them; the feed is the truth."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable

import msgspec

from connector.protocol import Decision, LeaseEnded, LeaseKind, LeaseOffer, LeaseRenewed, LeaseState
from connector.router.chain import pack_chain, split_mark, thin
from connector.router.index import TurnIndex
from connector.router.known import HeldLease, KnownTurn, NewTurn

log = logging.getLogger(__name__)

ABANDONED_SECONDS = 120.0
MAX_ABANDONED = 10_000

AT_ONCE = 128
"""Leases of a snapshot that are taken in before others get their turn: some 10 ms."""

MAX_BARE_TURNS = 8
"""Branches of a session that are remembered without a lease."""

Release = Callable[[str, str, str], object]
"""``release(engine, key, reason)`` asks the engine's agent to let go what ``key`` holds."""

_ENDED_REASONS = {LeaseState.EXPIRED: Decision.EXPIRED, LeaseState.LOST: Decision.SOURCE_LOST}


class LeaseBook:
    """Applies feed messages to the index; releases at once what abandoned turns are granted late."""

    def __init__(self, index: TurnIndex, release: Release) -> None:
        self._index = index
        self._release = release
        self._abandoned: dict[str, float] = {}

    def __len__(self) -> int:
        return self._index.num_held()

    def num_of(self, engine: str) -> int:
        """Leases that the engine holds."""
        return self._index.num_of(engine)

    async def replace_engine(self, engine: str, incarnation: str, offers: Iterable[LeaseOffer]) -> None:
        """A feed snapshot: exactly these leases are held by the engine now. Turns go on while it is worked off.

        The engine's later messages must wait for it.
        """
        ordered = sorted(offers, key=lambda offer: offer.lease.turn_id)
        for number, offer in enumerate(ordered, start=1):
            if not self._is_known(engine, incarnation, offer):
                self.grant(engine, incarnation, offer)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        held_now = {offer.lease.lease_id for offer in ordered}
        for turn in self._index.held_by(engine):
            if turn.lease_id not in held_now:
                self._end(turn, Decision.SOURCE_LOST)

    def drop_engine(self, engine: str, keep_incarnation: str = "") -> None:
        """The engine is gone, or only leases of ``keep_incarnation`` still exist on it."""
        if not self._index.num_held_by(engine, keep_incarnation):
            return
        for turn in self._index.held_by(engine):
            if not keep_incarnation or turn.holder[1] != keep_incarnation:
                self._end(turn, Decision.SOURCE_LOST)

    def grant(self, engine: str, incarnation: str, offer: LeaseOffer) -> None:
        lease = offer.lease
        if self._is_abandoned(lease.turn_id):
            self._release(engine, lease.lease_id, "cancelled")
            return
        if lease.kind is not LeaseKind.SESSION:
            return
        turn = self._index.get(lease.turn_id) or self._rebuild(offer)
        deadline = _deadline(lease.remaining_seconds, lease.pinned)
        held = HeldLease(lease.lease_id, engine, incarnation, offer.offer, deadline, lease.num_tokens)
        self._index.hold(turn, held)
        turn.settle()
        self.tidy(turn)

    def _is_known(self, engine: str, incarnation: str, offer: LeaseOffer) -> bool:
        """Whether a connection that was lost and came back tells what is known; its deadline is taken over."""
        lease = offer.lease
        turn = self._index.holding(engine, lease.lease_id)
        if turn is None or turn.holder[1] != incarnation or turn.turn_id != lease.turn_id:
            return False
        if turn.is_awaited or self._is_abandoned(lease.turn_id) or turn.offer != offer.offer:
            return False
        turn.deadline = _deadline(lease.remaining_seconds, lease.pinned)
        return True

    def renew(self, engine: str, renewed: LeaseRenewed) -> None:
        change = renewed.lease
        turn = self._index.holding(engine, change.lease_id)
        lease = turn.lease if turn else None
        if turn is None or lease is None:
            log.debug("event=renewal_of_unknown_lease engine=%s lease=%s", engine, change.lease_id)
            return
        deadline = _deadline(change.remaining_seconds, change.pinned)
        self._index.hold(turn, msgspec.structs.replace(lease, offer=renewed.offer, deadline=deadline))

    def end(self, engine: str, ended: LeaseEnded) -> None:
        turn = self._index.holding(engine, ended.lease_id)
        if turn is not None:
            self._end(turn, _ENDED_REASONS.get(ended.state, Decision.NO_PLACEMENT))

    def abandon(self, turn_id: str) -> None:
        """Whatever an engine still grants to this turn is released when its notice comes."""
        now = time.monotonic()
        self._abandoned[turn_id] = now + ABANDONED_SECONDS
        while self._abandoned:
            oldest = next(iter(self._abandoned))
            if len(self._abandoned) <= MAX_ABANDONED and self._abandoned[oldest] > now:
                break
            del self._abandoned[oldest]

    def tidy(self, turn: KnownTurn) -> None:
        """Forgets turns of the session that have no lease and nothing that this one lacks, and all but a few others."""
        turns = self._index.of_session(turn.session_id)
        num_bare = 0
        for other in turns if len(turns) > 1 else ():
            if other == turn or other.has_lease or other.is_running or other.is_awaited:
                continue
            num_bare += 1
            if num_bare > MAX_BARE_TURNS or other.begins(turn):
                self._index.remove(other)

    def _is_abandoned(self, turn_id: str) -> bool:
        return self._abandoned.get(turn_id, 0.0) > time.monotonic()

    def _rebuild(self, offer: LeaseOffer) -> KnownTurn:
        """The turn behind a lease that this process didn't route: after a restart, or another router's."""
        lease = offer.lease
        index, chain = split_mark(offer.chain)
        return self._index.add(NewTurn(lease.turn_id, lease.session_id, lease.tenant, index, pack_chain(thin(chain))))

    def _end(self, turn: KnownTurn, reason: Decision) -> None:
        self._index.release(turn, reason)
        if turn.is_running:
            return
        later = self._index.of_session(turn.session_id)
        if any(turn.begins(other) for other in later if other != turn and not other.is_running):
            self._index.remove(turn)


def _deadline(remaining_seconds: float, pinned: bool) -> float:
    return math.inf if pinned else time.monotonic() + remaining_seconds
