"""Leases over time: grant, supersede, extend, release, evict, re-deadline, end. Scheduler thread only.

Blocks are never freed here. A release is ordered from the workers, which first zero the fence word, then report the
request as sent; only then does vLLM free the blocks, and only then is the lease reported as ended.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from connector.engine.leases import Lease, LeaseTable
from connector.engine.metadata import SchedulerOrders
from connector.engine.offers import KvOffer
from connector.engine.policy import LivePolicy
from connector.protocol import ExtendLease, LeaseEnded, LeaseKind, LeaseOffer, LeaseState, PolicyValues, ReleaseLease

if TYPE_CHECKING:
    from connector.engine.reporting import EngineReporter

logger = logging.getLogger("vllm.backhaul.leases")

PINNED_SECONDS = 10 * 365 * 86400.0
"""A pinned lease's deadline: far enough never to pass, small enough for any clock."""
LOW_WATER_BLOCKS = 4


class LeaseControl:
    def __init__(self, sign: Callable[[KvOffer], str], policy: LivePolicy) -> None:
        self.table = LeaseTable(sign)
        self.reporter: EngineReporter
        self._policy = policy
        self._block_pool: Any = None
        self._kept: list[str] = []
        self._deadlines: dict[str, float] = {}
        self._releases: list[str] = []
        self._expired: set[str] = set()

    def bind(self, block_pool: Any) -> None:
        self._block_pool = block_pool

    @property
    def has_orders(self) -> bool:
        return bool(self._kept or self._deadlines or self._releases)

    @property
    def num_ending(self) -> int:
        return sum(lease.ending is not None for lease in self.table)

    def held_offers(self) -> list[LeaseOffer]:
        """Session leases that can still be offered; read by the link thread at a new connection."""
        leases = [lease for lease in self.table if lease.kind is LeaseKind.SESSION and lease.ending is None]
        return [self.table.offered(lease) for lease in leases]

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
        remaining = PINNED_SECONDS if command.pinned else command.ttl_seconds
        self._set_remaining(lease, remaining, pinned=command.pinned)
        self.reporter.done(command, "pinned" if command.pinned else "extended")

    def _follow_policy(self, old: PolicyValues, new: PolicyValues) -> None:
        """A changed TTL re-deadlines held, unpinned leases from their last renewal; 0, or no reuse, releases them."""
        ttl_seconds = new.decoder_kv_blocks_ttl
        for lease in self.table:
            if lease.kind is not LeaseKind.SESSION or lease.pinned or lease.ending is not None:
                continue
            if not new.bidirectional_kv_xfer or (ttl_seconds == 0 and not lease.has_own_ttl):
                self.release(lease, LeaseState.RELEASED, "policy")
            elif ttl_seconds != old.decoder_kv_blocks_ttl and not lease.has_own_ttl:
                remaining = max(0.0, lease.renewed_at + ttl_seconds - time.perf_counter())
                self._set_remaining(lease, remaining, pinned=False, is_renewal=False)
        self._enforce_limit(keep="")

    def _set_remaining(self, lease: Lease, remaining: float, *, pinned: bool, is_renewal: bool = True) -> None:
        self._deadlines[lease.request_id] = remaining
        if is_renewal:
            lease.renewed_at = time.perf_counter()
        self.reporter.send(self.table.extend(lease, remaining, pinned=pinned))

    # ------------------------------------------------ grant, release, evict

    def grant(self, lease: Lease) -> None:
        self.table.add(lease)
        if lease.kind is not LeaseKind.SESSION:
            return
        self._kept.append(lease.request_id)
        self.reporter.send(self.table.offered(lease))
        if self.table.num_blocks_with_pinned(lease) > self._limit_blocks:
            # No eviction of others could make it fit; its prefix, if leased, is worth more than nothing.
            self.release(lease, LeaseState.RELEASED, "pinned_kv_limit")
            return
        for old in self.table.superseded_by(lease):
            self.release(old, LeaseState.SUPERSEDED, "superseded")
        self._enforce_limit(keep=lease.lease_id)

    def release(self, lease: Lease, state: LeaseState, reason: str) -> None:
        """Orders the workers to let go; repeated calls change nothing."""
        if lease.ending is None:
            lease.ending = (state, reason)
            self._releases.append(lease.request_id)

    @property
    def _limit_blocks(self) -> int:
        return int(self._policy.values.pinned_kv_limit * self._block_pool.num_gpu_blocks)

    def _enforce_limit(self, keep: str) -> None:
        self._evict(self.table.num_blocks - self._limit_blocks, "pinned_kv_limit", keep)

    def make_room(self, num_tokens: int, block_size: int) -> None:
        """A request that could not be scheduled for leased blocks gets them, before it has to wait for a TTL."""
        if len(self.table):
            self._evict(-(-num_tokens // block_size) - self._block_pool.get_num_free_blocks(), "pressure")

    def keep_low_water(self) -> None:
        """Growing requests find a few free blocks, so that none is preempted for the sake of a lease."""
        if len(self.table):
            self._evict(LOW_WATER_BLOCKS - self._block_pool.get_num_free_blocks(), "pressure")

    def _evict(self, num_blocks: int, reason: str, keep: str = "") -> None:
        if num_blocks <= 0:
            return
        for lease in self.table.to_evict(num_blocks, keep):
            logger.info("Evicting lease %s (%d blocks): %s.", lease.lease_id, len(lease.block_ids), reason)
            self.release(lease, LeaseState.RELEASED, reason)

    # ------------------------------------------------ towards and from the workers

    def fill(self, orders: SchedulerOrders) -> None:
        orders.kept_requests, self._kept = self._kept, []
        orders.deadlines, self._deadlines = self._deadlines, {}
        orders.releases, self._releases = self._releases, []

    def note_reads(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            if lease := self.table.find(request_id):
                lease.num_reads += 1

    def note_expired(self, request_ids: list[str]) -> None:
        self._expired.update(request_ids)

    def ended(self, request_id: str) -> None:
        """Every rank has let go, so vLLM frees the blocks in this very step."""
        was_expired = request_id in self._expired
        self._expired.discard(request_id)
        lease = self.table.remove(request_id)
        if lease is None or lease.kind is not LeaseKind.SESSION:
            return
        default = (LeaseState.EXPIRED, "ttl") if was_expired else (LeaseState.RELEASED, "read")
        state, reason = lease.ending or default
        self.reporter.event(
            LeaseEnded(lease_id=lease.lease_id, state=state, reason=reason, num_reads=lease.num_reads),
        )
