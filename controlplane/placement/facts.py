"""What a batch of events says about sessions, turns and leases, one row per object; pure.

Rows are encoded as JSON and joined by Postgres, so field names here are the column names of ``statements``.
"""

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from connector.protocol import (
    Event,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseKind,
    LegDecided,
    Role,
    TurnRecorded,
)
from controlplane.placement import bounds
from controlplane.placement.models import ENDED_STATES
from controlplane.placement.rows import (
    End,
    Extension,
    Grant,
    LeaseSeen,
    Leg,
    SessionSeen,
    TurnEnd,
    TurnSeen,
)


class Dated(NamedTuple):
    """An event and when it happened by the control plane's clock."""

    event: Event
    occurred_at: datetime


class Refusal(NamedTuple):
    event: Event
    error: bounds.RefusedEventError


class Facts:
    """Everything that a batch says, merged per object so that each row is written once per statement."""

    def __init__(self, engine_name: str) -> None:
        self.engine_name = engine_name
        self.sessions: dict[str, SessionSeen] = {}
        self.turns: dict[uuid.UUID, TurnSeen] = {}
        self.turn_ends: dict[uuid.UUID, TurnEnd] = {}
        self.legs: dict[Role, dict[uuid.UUID, Leg]] = {Role.PREFILL: {}, Role.DECODE: {}}
        self.leases: dict[str, LeaseSeen] = {}
        self.grants: dict[str, Grant] = {}
        self.extensions: dict[str, Extension] = {}
        self.ends: dict[str, End] = {}

    def add(self, event: Event, at: datetime) -> None:
        """Takes in one event, whole or, with ``RefusedEventError``, not at all; other kinds are not this app's."""
        match event:
            case TurnRecorded():
                self._add_turn_end(event, at)
            case LegDecided():
                self._add_leg(event, at)
            case LeaseGranted(kind=LeaseKind.SESSION):
                self.add_grant(event, at)
            case LeaseExtended():
                self._add_extension(event, at)
            case LeaseEnded():
                self._add_end(event, at)

    def forget_leases(self, lease_ids: Iterable[str]) -> None:
        """Leaves out what is said about leases that are no placements."""
        for lease_id in lease_ids:
            self.leases.pop(lease_id, None)
            self.extensions.pop(lease_id, None)
            self.ends.pop(lease_id, None)

    def add_grant(self, event: LeaseGranted, at: datetime, *, is_snapshot: bool = False) -> None:
        """``is_snapshot``: ``at`` is when the engine listed its leases, which is no sign of life of the session."""
        expires_at = None if event.pinned else bounds.moment_after(at, event.remaining_seconds)
        grant = Grant(
            id=bounds.identifier(event.lease_id),
            at=at,
            session_id=bounds.identifier(event.session_id),
            turn_id=bounds.turn_uuid(event.turn_id),
            tenant=bounds.text(event.tenant),
            tokens=bounds.count(event.num_tokens),
            blocks=bounds.count(event.num_blocks),
            bytes=bounds.count(event.num_bytes, high=bounds.MAX_BYTES),
            expires_at=expires_at,
            pinned=event.pinned,
        )
        session = self._see(grant.session_id, grant.turn_id, at, is_alive=not is_snapshot)
        session.granted_tenant = session.granted_tenant or grant.tenant
        self._see_lease(grant.id, at)
        self.grants.setdefault(grant.id, grant)

    def _add_turn_end(self, event: TurnRecorded, at: datetime) -> None:
        end = TurnEnd(
            id=bounds.turn_uuid(event.turn_id),
            at=at,
            session_id=bounds.identifier(event.session_id),
            # The event is made when the turn ends, so its own duration dates the start without a second age.
            started_at=bounds.moment_before(at, event.duration_ms),
            parent_turn_id=bounds.turn_uuid(event.parent_turn_id) if event.parent_turn_id else None,
            index=bounds.count(event.index),
            model=bounds.text(event.model, max_chars=bounds.MAX_ID_CHARS),
            tenant=bounds.text(event.tenant),
            prefill_engine=bounds.text(event.prefill_engine),
            decode_engine=bounds.text(event.decode_engine),
            status=bounds.identifier(event.status, max_chars=16),
            http_status=bounds.count(event.http_status, high=999) or None,
            stream=event.stream,
            prefill_ms=bounds.milliseconds(event.prefill_ms) or None,
            ttft_ms=bounds.milliseconds(event.ttft_ms) or None,
            duration_ms=bounds.milliseconds(event.duration_ms),
            prompt_tokens=bounds.count(event.num_prompt_tokens),
            output_tokens=bounds.count(event.num_output_tokens),
            trace_id=bounds.trace_id(event.trace_id),
            diverged_at_message=_count_or_none(event.diverged_at_message),
            diverged_role=bounds.text(event.diverged_role, max_chars=bounds.MAX_ROLE_CHARS),
        )
        session = self._see(end.session_id, end.id, end.started_at)
        session.last_at = max(session.last_at, at)
        session.routed_tenant = end.tenant or session.routed_tenant
        if session.model_at is None or end.started_at > session.model_at:
            session.model, session.model_at = end.model, end.started_at
        self.turn_ends[end.id] = end

    def _add_leg(self, event: LegDecided, at: datetime) -> None:
        leg = Leg(
            id=bounds.turn_uuid(event.turn_id),
            at=at,
            engine=self.engine_name,
            decision=event.decision,
            prompt_tokens=bounds.count(event.num_prompt_tokens),
            offered_tokens=bounds.count(event.num_offered_tokens),
            verified_tokens=bounds.count(event.num_verified_tokens),
            local_tokens=bounds.count(event.num_local_tokens),
            reused_tokens=bounds.count(event.num_pulled_tokens),
            trace_id=bounds.trace_id(event.traceparent),
            diverged_at_token=_count_or_none(event.diverged_at_token),
        )
        self._see(bounds.identifier(event.session_id), leg.id, at)
        legs = self.legs[event.leg]
        if leg.id not in legs or at >= legs[leg.id].at:
            legs[leg.id] = leg

    def _add_extension(self, event: LeaseExtended, at: datetime) -> None:
        lease_id = bounds.identifier(event.lease_id)
        expires_at = None if event.pinned else bounds.moment_after(at, event.remaining_seconds)
        self._see_lease(lease_id, at)
        if lease_id not in self.extensions or at >= self.extensions[lease_id].at:
            self.extensions[lease_id] = Extension(id=lease_id, at=at, expires_at=expires_at, pinned=event.pinned)

    def _add_end(self, event: LeaseEnded, at: datetime) -> None:
        if event.state not in ENDED_STATES:
            raise bounds.RefusedEventError(f"a lease can't end as {event.state}")
        end = End(
            id=bounds.identifier(event.lease_id),
            at=at,
            state=event.state,
            reason=bounds.reason(event.reason),
            num_reads=bounds.count(event.num_reads),
        )
        self._see_lease(end.id, at)
        self.ends.setdefault(end.id, end)

    def _see(self, session_id: str, turn_id: uuid.UUID, at: datetime, *, is_alive: bool = True) -> SessionSeen:
        session = self.sessions.setdefault(session_id, SessionSeen(id=session_id, first_at=at, last_at=at))
        session.first_at = min(session.first_at, at)
        if is_alive:
            session.last_at = max(session.last_at, at)
        turn = self.turns.setdefault(turn_id, TurnSeen(id=turn_id, session_id=session_id, first_at=at))
        turn.first_at = min(turn.first_at, at)
        return session

    def _see_lease(self, lease_id: str, at: datetime) -> None:
        lease = self.leases.setdefault(lease_id, LeaseSeen(id=lease_id, first_at=at))
        lease.first_at = min(lease.first_at, at)


def facts_of(events: Iterable[Dated], engine_name: str) -> tuple[Facts, list[Refusal]]:
    """The facts of a batch, and the events that can't be stored: resending can't mend those."""
    facts = Facts(engine_name)
    refusals = []
    for event, occurred_at in events:
        try:
            facts.add(event, occurred_at)
        except bounds.RefusedEventError as error:
            refusals.append(Refusal(event, error))
    return facts, refusals


def _count_or_none(value: int | None) -> int | None:
    return None if value is None else bounds.count(value)
