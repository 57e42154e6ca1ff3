"""Leases over time: grant, supersede, extend, release, evict, re-deadline, end. Scheduler thread only.

Blocks are never freed here. A release is ordered from the workers, which first zero the fence word, then report the
request as sent; only then does vLLM free the blocks, and only then is the lease reported as ended.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from connector.engine.demand import BlockDemand
from connector.engine.grants import LeaseFactory
from connector.engine.lease import Lease
from connector.engine.leases import LeaseTable
from connector.engine.metadata import SchedulerOrders
from connector.engine.policy import LivePolicy
from connector.engine.room import LeaseRoom
from connector.protocol import (
    ExtendLease,
    LeaseEnded,
    LeaseOffer,
    LeaseState,
    LegEnvelope,
    PolicyValues,
    ReleaseLease,
)

if TYPE_CHECKING:
    from connector.engine.reporting import EngineReporter

PINNED_SECONDS = 10 * 365 * 86400.0
"""A pinned lease's deadline: far enough never to pass, small enough for any clock."""


class LeaseControl:
    def __init__(self, factory: LeaseFactory, policy: LivePolicy, demand: BlockDemand) -> None:
        self.table = LeaseTable()
        self.room = LeaseRoom(
            self.table, policy, demand, lambda lease, why: self._order(lease, LeaseState.RELEASED, why)
        )
        self.reporter: EngineReporter
        self.unread_block_seconds = 0.0
        self._factory = factory
        self._policy = policy
        self._is_kept: dict[str, bool] = {}
        self._deadlines: dict[str, float] = {}
        self._releases: list[str] = []
        self._expired: set[str] = set()

    def bind(self, block_pool: Any) -> None:
        self.table.bind(block_pool.num_gpu_blocks)
        self.room.bind(block_pool)

    @property
    def has_orders(self) -> bool:
        return bool(self._is_kept or self._deadlines or self._releases)

    def held_offers(self) -> Iterator[LeaseOffer]:
        """Session leases that can still be offered; read by the link thread at a new connection."""
        return (self._factory.offered(lease) for lease in self.table if lease.is_live)

    # ------------------------------------------------ what the agent and the policy ask

    def pump(self) -> None:
        """Cheap when there is nothing to do: two looks at a deque and a reference."""
        if change := self._policy.take_change():
            self._follow_policy(*change)
        for command in self.reporter.commands():
            if isinstance(command, ReleaseLease):
                self._obey_release(command)
            else:
                self._obey_extend(command)

    def _obey_release(self, command: ReleaseLease) -> None:
        lease = self.table.find(command.key)
        if lease is None:
            self.reporter.done(command, "not_found")
            return
        self.release(lease, LeaseState.RELEASED, command.reason)
        self.reporter.done(command, "released")

    def _obey_extend(self, command: ExtendLease) -> None:
        lease = self.table.find(command.lease_id)
        if lease is None or lease.ending is not None:
            self.reporter.done(command, "not_found")
            return
        self.table.pin(lease, pinned=command.pinned)
        self.room.note_pins()
        lease.renewed_at = time.perf_counter()
        self._set_remaining(lease, PINNED_SECONDS if command.pinned else command.ttl_seconds)
        self._follow_reads(lease)
        self.reporter.done(command, "pinned" if command.pinned else "extended")

    def _follow_policy(self, old: PolicyValues, new: PolicyValues) -> None:
        """What a lease's session has set for itself stays as it is."""
        has_other_ttl = new.decoder_kv_blocks_ttl != old.decoder_kv_blocks_ttl
        for lease in self.table:
            if lease.is_live:
                self._follow(lease, has_other_ttl=has_other_ttl and not lease.has_own_ttl)
        self.room.enforce_limit()

    def adopt(self, envelope: LegEnvelope) -> None:
        """A session's own policy, as its newest turn brought it, holds for what is held of the session already."""
        for lease in self.table.of_session(envelope.tenant, envelope.session_id):
            ttl_before = lease.ttl_seconds(self._policy.values)
            lease.take_policy(envelope.policy)
            self._follow(lease, has_other_ttl=lease.ttl_seconds(self._policy.values) != ttl_before)

    def _follow(self, lease: Lease, *, has_other_ttl: bool) -> None:
        """Another TTL re-deadlines an unpinned lease from its last renewal; 0, or no reuse, releases it."""
        ttl_seconds = lease.ttl_seconds(self._policy.values)
        if not lease.pinned and ttl_seconds == 0:
            self.release(lease, LeaseState.RELEASED, "policy")
            return
        if not lease.pinned and has_other_ttl:
            self._set_remaining(lease, max(0.0, lease.renewed_at + ttl_seconds - time.perf_counter()))
        self._follow_reads(lease)

    def _follow_reads(self, lease: Lease) -> None:
        """Tells the workers whether a read frees it; one that was read before is freed at once."""
        is_kept = not lease.is_freed_by_read(self._policy.values)
        if is_kept != lease.is_kept:
            lease.is_kept = self._is_kept[lease.request_id] = is_kept
        if not is_kept and lease.num_reads:
            self.release(lease, LeaseState.RELEASED, "read")

    def _set_remaining(self, lease: Lease, remaining: float) -> None:
        self._deadlines[lease.request_id] = remaining
        lease.deadline = time.perf_counter() + remaining
        self.reporter.send(self._factory.renewed(lease))

    # ------------------------------------------------ grant and release

    def grant(
        self, lease: Lease, replaces: Iterable[str] = (), covers: Callable[[Lease], bool] = lambda _old: False
    ) -> None:
        """``covers``: whether an older lease's tokens are a prefix of this one's, so that nothing is lost with it.

        ``replaces``: leases whose history this one's turn has rewritten, by the router's word.
        """
        self.table.add(lease)
        if lease.is_handoff:
            return
        self._follow_reads(lease)
        self.reporter.send(self._factory.offered(lease))
        if not self.room.can_stay(lease):
            # No eviction of others could make it fit; its prefix, if leased, is worth more than nothing.
            self.release(lease, LeaseState.RELEASED, "pinned_kv_limit")
            return
        self._supersede(lease, frozenset(replaces), covers)
        self.room.note_granted(lease)
        self.room.enforce_limit(keep=lease)

    def _supersede(self, new: Lease, replaces: frozenset[str], covers: Callable[[Lease], bool]) -> None:
        for old in self.table.of_session(new.tenant, new.session_id):
            if old is new or old.pinned:
                continue
            if old.num_tokens <= new.num_tokens and covers(old):
                if old.num_reads == 0:
                    # Its next turn came, though prefill had no need to read it.
                    self.room.odds.observe(time.perf_counter() - old.used_at, returned=True)
                self.release(old, LeaseState.SUPERSEDED, "superseded")
            elif replaces and old.lease_id in replaces:
                self.release(old, LeaseState.SUPERSEDED, "rewritten")

    def release(self, lease: Lease, state: LeaseState, reason: str) -> None:
        """Orders the workers to let go; repeated calls change nothing."""
        if lease.ending is None:
            self.table.retire(lease)
            self._order(lease, state, reason)

    def _order(self, lease: Lease, state: LeaseState, reason: str) -> None:
        lease.ending = (state, reason)
        self._releases.append(lease.request_id)

    # ------------------------------------------------ towards and from the workers

    def fill(self, orders: SchedulerOrders) -> None:
        for request_id, is_kept in self._is_kept.items():
            (orders.kept_requests if is_kept else orders.unkept_requests).append(request_id)
        self._is_kept = {}
        orders.deadlines, self._deadlines = self._deadlines, {}
        orders.releases, self._releases = self._releases, []

    def note_reads(self, request_ids: list[str]) -> None:
        now = time.perf_counter()
        for request_id in request_ids:
            if lease := self.table.find(request_id):
                self.room.odds.observe(now - lease.used_at, returned=True)
                self.table.note_read(lease, now)

    def note_expired(self, request_ids: list[str]) -> None:
        self._expired.update(request_ids)

    def ended(self, request_id: str) -> Lease | None:
        """Every rank has let go, so vLLM frees the blocks in this very step."""
        was_expired = request_id in self._expired
        self._expired.discard(request_id)
        lease = self.table.remove(request_id)
        if lease is None or lease.is_handoff:
            return lease
        default = (LeaseState.EXPIRED, "ttl") if was_expired else (LeaseState.RELEASED, "read")
        state, reason = lease.ending or default
        self._account(lease, state, reason)
        self.reporter.event(
            LeaseEnded(lease_id=lease.lease_id, state=state, reason=reason, num_reads=lease.num_reads),
        )
        return lease

    def _account(self, lease: Lease, state: LeaseState, reason: str) -> None:
        """What its end teaches, and what it cost if nobody has read it."""
        idle_seconds = time.perf_counter() - lease.used_at
        if lease.num_reads == 0:
            self.unread_block_seconds += lease.num_blocks * idle_seconds
        if state is not LeaseState.SUPERSEDED and reason != "read":
            self.room.odds.observe(idle_seconds, returned=False)
