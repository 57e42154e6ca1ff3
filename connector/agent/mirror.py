"""The engine as the agent knows it, and the one place where the engine's news become events, spans and feed changes."""

from typing import Protocol

import msgspec

from connector.agent.commands import CommandDesk
from connector.agent.events import EventBuffer
from connector.agent.feed import FeedHub
from connector.agent.leases import HeldLease, LeaseTable
from connector.agent.peers import PeerDesk
from connector.agent.policy import PolicyDesk
from connector.agent.spans import SpanRecorder
from connector.protocol import (
    CommandDone,
    EngineEvent,
    EngineHello,
    EngineInfo,
    EngineLoad,
    EngineState,
    EngineToAgent,
    LeaseEnded,
    LeaseOffer,
    LeaseRenewed,
    LeaseSnapshot,
    LeaseState,
    LegDecided,
    PolicyApplied,
    Pong,
    TransferRecorded,
)


class Audience(Protocol):
    """The control plane's side of the agent."""

    def engine_changed(self) -> None:
        """State, incarnation or facts of the engine are other than they were."""

    def engine_synchronised(self) -> None:
        """The lease table is that of the engine again."""

    def policy_applied(self, applied: PolicyApplied) -> None: ...


class _Synchronisation(msgspec.Struct):
    """The offers that follow a hello. Their announced number ends them, or the first ``Pong``, which comes after them:
    the engine may announce leases that it no longer offers.
    """

    num_missing: int
    listed: set[str] = msgspec.field(default_factory=set)


class EngineMirror:
    """A ``LinkObserver``. Everything runs in the link's callbacks on the event loop, so the order of news is kept."""

    def __init__(
        self,
        *,
        leases: LeaseTable,
        events: EventBuffer,
        hub: FeedHub,
        spans: SpanRecorder,
        commands: CommandDesk,
        policy: PolicyDesk,
        peers: PeerDesk,
        audience: Audience,
    ) -> None:
        self.info: EngineInfo | None = None
        self.load: EngineLoad | None = None
        self.state = EngineState.DOWN
        self._leases = leases
        self._events = events
        self._hub = hub
        self._spans = spans
        self._commands = commands
        self._policy = policy
        self._peers = peers
        self._audience = audience
        self._sync: _Synchronisation | None = None

    @property
    def incarnation(self) -> str:
        return self.info.incarnation if self.info else ""

    def lease_snapshot(self) -> LeaseSnapshot | None:
        """For the control plane, which knows these leases from now on.

        ``None`` while the engine isn't connected or its leases aren't all known.
        """
        if self.state is EngineState.DOWN or self._sync is not None or self.info is None:
            return None
        self._leases.mark_told()
        return LeaseSnapshot(incarnation=self.incarnation, leases=tuple(offer.lease for offer in self._leases.offers()))

    # ---------------------------------------------------------------- the link's news

    def engine_answered(self, hello: EngineHello) -> None:
        if self.info is not None and self.info.incarnation != hello.engine.incarnation:
            self._lose_leases("engine_restarted")
        self.info = hello.engine
        self._set_state(EngineState.READY)
        # Peers first: a starting engine serves once it has its policy.
        self._peers.push()
        self._policy.engine_applied(hello.policy)
        self._policy.push()
        self._sync = _Synchronisation(hello.num_leases)
        if hello.num_leases == 0:
            self._finish_sync(self._sync)

    def state_changed(self, state: EngineState) -> None:
        if state is EngineState.DOWN:
            self._sync = None
            self.load = None
            self._commands.link_lost()
        self._set_state(state)

    def engine_gone(self) -> None:
        self._lose_leases("engine_gone")

    def message_received(self, message: EngineToAgent) -> None:
        match message:
            case Pong():
                if self._sync is not None:
                    self._finish_sync(self._sync)
                self.load = message.load
                self._hub.set_load(message.load)
            case LeaseOffer():
                self._offered(message)
            case LeaseRenewed():
                self._renewed(message)
            case EngineEvent():
                self._happened(message)
            case PolicyApplied():
                self._policy.engine_applied(message)
                self._audience.policy_applied(message)
            case CommandDone():
                self._commands.answered(message)

    # ---------------------------------------------------------------- leases

    def _offered(self, offer: LeaseOffer) -> None:
        """An offer that is held already says nothing new: listed again at a reconnect, or listed and kept as well."""
        is_live = self._sync is None
        if not self._leases.has(offer):
            turn = self._spans.traceparent_of(offer.lease.turn_id)
            is_new = self._leases.grant(offer, turn, is_told=is_live)
            self._hub.publish(offer)
            if is_new and is_live:
                self._events.append(offer.lease, self.incarnation)
        if self._sync is not None:
            self._list(self._sync, offer.lease.lease_id)

    def _list(self, sync: _Synchronisation, lease_id: str) -> None:
        sync.listed.add(lease_id)
        sync.num_missing -= 1
        if sync.num_missing == 0:
            self._finish_sync(sync)

    def _renewed(self, renewal: LeaseRenewed) -> None:
        if self._leases.renew(renewal):
            self._hub.publish(renewal)
        self._events.append(renewal.lease, self.incarnation)

    def _finish_sync(self, sync: _Synchronisation) -> None:
        """Leases that the engine no longer holds ended unseen: the control plane learns it from the snapshot."""
        self._sync = None
        for held in self._leases.end_all_but(sync.listed):
            state = LeaseState.EXPIRED if self._leases.is_overdue(held) else LeaseState.RELEASED
            self._hub.publish(LeaseEnded(lease_id=held.offer.lease.lease_id, state=state, reason="unseen"))
        self._audience.engine_synchronised()

    def _lose_leases(self, reason: str) -> None:
        """The process that held them is dead. Called with the old incarnation still in place."""
        for held in self._leases.end_all():
            self._ended(held, LeaseEnded(lease_id=held.offer.lease.lease_id, state=LeaseState.LOST, reason=reason))

    def _ended(self, held: HeldLease | None, ended: LeaseEnded, age_ms: float = 0.0) -> None:
        if held is not None:
            if not held.is_told:
                # Granted while nobody listened, and no snapshot will ever show it.
                self._events.append(held.offer.lease, self.incarnation, age_ms)
            self._hub.publish(ended)
            held_seconds = self._leases.seconds_since_learned(held)
            self._spans.record_lease(held, held_seconds, ended, self.incarnation, age_ms)
        self._events.append(ended, self.incarnation, age_ms)

    # ---------------------------------------------------------------- events

    def _happened(self, message: EngineEvent) -> None:
        match message.event:
            case LeaseEnded() as ended:
                self._ended(self._leases.end(ended.lease_id), ended, message.age_ms)
            case TransferRecorded() as transfer:
                self._spans.remember_turn(transfer.turn_id, transfer.traceparent)
                recorded = self._spans.record_transfer(transfer)
                self._events.append(recorded, self.incarnation, message.age_ms)
            case LegDecided() as decided:
                self._spans.remember_turn(decided.turn_id, decided.traceparent)
                self._events.append(decided, self.incarnation, message.age_ms)

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self._hub.set_engine(state, self.incarnation)
        self._audience.engine_changed()
