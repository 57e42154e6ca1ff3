"""The turns that other routers say they run, kept in this router's index like its own."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from connector.router.chain import PACKED_BYTES
from connector.router.claims.messages import Batch, Claim, TurnDecoding, TurnEnded, TurnStarted
from connector.router.index import TurnIndex
from connector.router.metrics import Metrics
from connector.router.sessions import Sessions

SILENT_SECONDS = 5.0
"""A router that says nothing for so long is dead; it gives a sign of life each second."""

MAX_TURNS = 20_000
"""Of all other routers: a running turn is never evicted from the index, so their number is bounded here."""

MAX_ROUTERS = 256
"""Runs of routers that are remembered, dead ones included, so that their batches can't be played again."""


class TurnLife(Protocol):
    """What the placer does when a turn of its own decodes and ends."""

    def expect_notice(self, turn_id: str, engine: str) -> None: ...
    def finish(self, turn_id: str, served: bool, reply: bytes, num_prompt_tokens: int) -> None: ...


@dataclass(slots=True)
class Peer:
    """One run of another router. ``turns``: monotonic seconds at which each claim runs out, the oldest first."""

    sequence: int
    heard_at: float
    turns: dict[str, float] = field(default_factory=dict)


class RemoteTurns:
    """Changed on the event loop only. A batch can only touch turns that its own router claimed before."""

    def __init__(
        self,
        index: TurnIndex,
        sessions: Sessions,
        life: TurnLife,
        metrics: Metrics,
        lifetime_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = index
        self._sessions = sessions
        self._life = life
        self._metrics = metrics
        self._lifetime_seconds = lifetime_seconds
        self._clock = clock
        self._peers: dict[str, Peer] = {}
        self._num_turns = 0

    def __len__(self) -> int:
        return self._num_turns

    def take(self, batch: Batch) -> None:
        """Applies a verified batch once; one that was heard already changes nothing."""
        now, peer = self._clock(), self._peers.pop(batch.boot, None)
        if peer is None:
            peer = Peer(batch.sequence - 1, now)
        self._peers[batch.boot] = peer
        if batch.sequence <= peer.sequence:
            self._metrics.claim_batches_refused.labels("seen").inc()
            return
        self._make_room()
        if batch.is_reset or batch.sequence != peer.sequence + 1:
            self._forget(peer)
        peer.sequence, peer.heard_at = batch.sequence, now
        for claim in batch.claims:
            self._apply(peer, claim, now)
        self._metrics.claims.labels("taken").inc(len(batch.claims))
        if batch.is_last:
            self._forget(peer)
        self._metrics.remote_turns.set(self._num_turns)

    def expire(self, listening_seconds: float) -> None:
        """Ends claims that are too old, and those of routers that died. While this router itself hears nothing
        (``listening_seconds`` is short or 0), silence says nothing about the others."""
        now = self._clock()
        for peer in self._peers.values():
            if peer.turns and listening_seconds >= SILENT_SECONDS and now - peer.heard_at >= SILENT_SECONDS:
                self._forget(peer)
            while peer.turns and next(iter(peer.turns.values())) <= now:
                self._end(peer, next(iter(peer.turns)))
        self._metrics.remote_turns.set(self._num_turns)

    def _apply(self, peer: Peer, claim: Claim, now: float) -> None:
        match claim:
            case TurnStarted():
                self._start(peer, claim, now)
            case TurnDecoding(turn_id, engine):
                if turn_id in peer.turns:
                    self._life.expect_notice(turn_id, engine)
            case TurnEnded(turn_id, is_served, reply, num_prompt_tokens):
                self._end(peer, turn_id, is_served, reply, num_prompt_tokens)

    def _start(self, peer: Peer, claim: TurnStarted, now: float) -> None:
        if self._index.get(claim.turn_id) is not None:
            return  # its lease was faster
        if self._num_turns >= MAX_TURNS:
            self._metrics.claims.labels("full").inc()
            return
        turn = claim.turn
        parent = self._index.get(turn.parent_turn_id) if turn.parent_turn_id else None
        if parent is not None and (parent.tenant, parent.session_id) == (turn.tenant, turn.session_id):
            parent.continued_by = parent.continued_by or turn.chain[-PACKED_BYTES:]
        self._index.add(turn)
        peer.turns[turn.turn_id] = now + self._lifetime_seconds
        self._num_turns += 1

    def _end(
        self, peer: Peer, turn_id: str, is_served: bool = False, reply: bytes = b"", num_prompt_tokens: int = 0
    ) -> None:
        if peer.turns.pop(turn_id, None) is None:
            return
        self._num_turns -= 1
        turn = None if is_served else self._index.get(turn_id)
        number = (turn.session_id, turn.index) if turn is not None else None
        self._life.finish(turn_id, is_served, reply, num_prompt_tokens)
        if number is not None:  # what leaves nothing in the index still had a number
            self._sessions.learn(*number, turn_id)

    def _forget(self, peer: Peer) -> None:
        """What it claimed may have ended unheard. Leases stay: they come from the feeds."""
        for turn_id in list(peer.turns):
            self._end(peer, turn_id)

    def _make_room(self) -> None:
        while len(self._peers) > MAX_ROUTERS:
            oldest = next(iter(self._peers))
            self._forget(self._peers.pop(oldest))
