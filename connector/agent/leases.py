"""The leases that the engine holds now, with remaining times that run down on this process's clock."""

import time
from collections.abc import Callable, Iterable

import msgspec

from connector.protocol import LeaseOffer, LeaseRenewed


class HeldLease(msgspec.Struct, kw_only=True):
    """``learned_at`` and ``deadline`` are monotonic seconds; a pinned lease keeps the remaining time it was given.

    ``traceparent`` is of the turn that made the lease, empty when the agent hasn't seen it. ``is_told``: the control
    plane got, or surely will get, the grant.
    """

    offer: LeaseOffer
    learned_at: float
    deadline: float
    traceparent: str = ""
    is_told: bool = False


class LeaseTable:
    """Keyed by lease id. The engine alone ends leases: one past its deadline stays until the engine says so."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: dict[str, HeldLease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def has(self, offer: LeaseOffer) -> bool:
        """Whether this very offer is held: an offer that changed is signed anew."""
        held = self._held.get(offer.lease.lease_id)
        return held is not None and held.offer.offer == offer.offer

    def grant(self, offer: LeaseOffer, traceparent: str = "", *, is_told: bool = True) -> bool:
        """Adds or replaces; true when the lease is new."""
        now = self._clock()
        known = self._held.get(offer.lease.lease_id)
        self._held[offer.lease.lease_id] = HeldLease(
            offer=offer,
            learned_at=known.learned_at if known else now,
            deadline=now + offer.lease.remaining_seconds,
            traceparent=known.traceparent if known else traceparent,
            is_told=known.is_told if known else is_told,
        )
        return known is None

    def renew(self, renewal: LeaseRenewed) -> bool:
        """False when the lease isn't held."""
        held = self._held.get(renewal.lease.lease_id)
        if held is None:
            return False
        lease = msgspec.structs.replace(
            held.offer.lease,
            remaining_seconds=renewal.lease.remaining_seconds,
            pinned=renewal.lease.pinned,
        )
        return not self.grant(msgspec.structs.replace(held.offer, lease=lease, offer=renewal.offer))

    def mark_told(self) -> None:
        for held in self._held.values():
            held.is_told = True

    def end(self, lease_id: str) -> HeldLease | None:
        return self._held.pop(lease_id, None)

    def end_all(self) -> list[HeldLease]:
        ended = list(self._held.values())
        self._held.clear()
        return ended

    def end_all_but(self, lease_ids: Iterable[str]) -> list[HeldLease]:
        kept = set(lease_ids)
        return [self._held.pop(lease_id) for lease_id in list(self._held) if lease_id not in kept]

    def is_overdue(self, held: HeldLease) -> bool:
        return not held.offer.lease.pinned and held.deadline <= self._clock()

    def seconds_since_learned(self, held: HeldLease) -> float:
        return self._clock() - held.learned_at

    def offers(self) -> tuple[LeaseOffer, ...]:
        """Every held lease with its remaining time as of now."""
        now = self._clock()
        return tuple(_aged(held, now) for held in self._held.values())


def _aged(held: HeldLease, now: float) -> LeaseOffer:
    if held.offer.lease.pinned:
        return held.offer
    lease = msgspec.structs.replace(held.offer.lease, remaining_seconds=max(0.0, held.deadline - now))
    return msgspec.structs.replace(held.offer, lease=lease)
