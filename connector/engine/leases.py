"""Every lease this engine has granted, and which distinct KV blocks they hold. Scheduler thread only, except reads."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec

from connector.engine.offers import KvOffer
from connector.protocol import LeaseExtended, LeaseGranted, LeaseKind, LeaseOffer, LeaseRenewed, LeaseState


class Lease(msgspec.Struct, kw_only=True):
    """A granted lease. Invariant: listed here exactly while vLLM keeps the request's blocks for it.

    ``deadline`` and ``renewed_at`` are this process's ``perf_counter``; ``ending`` is set once its release was asked
    of the workers, and says how it will be reported when they have confirmed.
    """

    lease_id: str
    request_id: str
    kind: LeaseKind
    tenant: str
    session_id: str
    turn_id: str
    traceparent: str
    chain: tuple[str, ...]
    offer: KvOffer
    block_ids: frozenset[int]
    num_bytes: int
    renewed_at: float
    deadline: float
    pinned: bool = False
    has_own_ttl: bool = False
    ending: tuple[LeaseState, str] | None = None
    num_reads: int = 0

    def remaining_seconds(self) -> float:
        return max(0.0, self.deadline - time.perf_counter())

    def granted(self) -> LeaseGranted:
        return LeaseGranted(
            lease_id=self.lease_id,
            kind=self.kind,
            session_id=self.session_id,
            turn_id=self.turn_id,
            tenant=self.tenant,
            num_tokens=self.offer.num_tokens,
            num_blocks=len(self.block_ids),
            num_bytes=self.num_bytes,
            remaining_seconds=self.remaining_seconds(),
            pinned=self.pinned,
        )


class LeaseTable:
    """Leases by request id and by lease id, with the number of distinct blocks that they hold together."""

    def __init__(self, sign: Callable[[KvOffer], str]) -> None:
        self._sign = sign
        self._by_request: dict[str, Lease] = {}
        self._request_of_lease: dict[str, str] = {}
        self._holders: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[Lease]:
        return iter(tuple(self._by_request.values()))

    @property
    def num_blocks(self) -> int:
        """Distinct KV blocks under lease; a block shared by two leases counts once."""
        return len(self._holders)

    def num_blocks_with_pinned(self, lease: Lease) -> int:
        """Distinct blocks that this lease and the pinned ones hold together: what stays if all others are evicted."""
        pinned = (other.block_ids for other in self._live(LeaseKind.SESSION) if other.pinned)
        return len(lease.block_ids.union(*pinned))

    @property
    def num_session_leases(self) -> int:
        return sum(lease.kind is LeaseKind.SESSION for lease in self)

    def find(self, key: str) -> Lease | None:
        """By lease id, engine request id, or the turn id that the engine's request id contains."""
        request_id = self._request_of_lease.get(key, key)
        if lease := self._by_request.get(request_id):
            return lease
        return next((lease for lease in self if lease.turn_id == key), None)

    def add(self, lease: Lease) -> None:
        self._by_request[lease.request_id] = lease
        self._request_of_lease[lease.lease_id] = lease.request_id
        self._holders.update(lease.block_ids)

    def remove(self, request_id: str) -> Lease | None:
        lease = self._by_request.pop(request_id, None)
        if lease is None:
            return None
        del self._request_of_lease[lease.lease_id]
        self._holders.subtract(lease.block_ids)
        for block_id in lease.block_ids:
            if self._holders[block_id] <= 0:
                del self._holders[block_id]
        return lease

    def offered(self, lease: Lease) -> LeaseOffer:
        return LeaseOffer(lease=lease.granted(), offer=self._sign(lease.offer), chain=lease.chain)

    def extend(self, lease: Lease, remaining_seconds: float, *, pinned: bool) -> LeaseRenewed:
        """Moves the deadline and re-signs the offer: a reader declines by the expiry that the offer carries."""
        lease.deadline = time.perf_counter() + remaining_seconds
        lease.pinned = pinned
        lease.offer = msgspec.structs.replace(lease.offer, expires_at_source=lease.deadline)
        return LeaseRenewed(
            lease=LeaseExtended(lease_id=lease.lease_id, remaining_seconds=remaining_seconds, pinned=pinned),
            offer=self._sign(lease.offer),
        )

    def superseded_by(self, new: Lease) -> list[Lease]:
        """Leases of the same session whose tokens are a prefix of the new one's, so nothing is lost with them."""
        return [
            old
            for old in self._live(LeaseKind.SESSION)
            if old.lease_id != new.lease_id
            and old.tenant == new.tenant
            and old.session_id == new.session_id
            and not old.pinned
            and new.offer.digests.startswith(old.offer.digests)
            and old.offer.num_tokens <= new.offer.num_tokens
        ]

    def to_evict(self, num_blocks_to_free: int, keep: str = "") -> list[Lease]:
        """Oldest first, pinned ones last, until that many distinct blocks would be free; never the lease ``keep``."""
        chosen: list[Lease] = []
        left = Counter(self._holders)
        for lease in self:
            if lease.ending is not None:
                num_blocks_to_free -= _release_from(left, lease.block_ids)
        for lease in sorted(self._live(LeaseKind.SESSION), key=lambda lease: (lease.pinned, lease.renewed_at)):
            if num_blocks_to_free <= 0:
                break
            if lease.lease_id == keep:
                continue
            chosen.append(lease)
            num_blocks_to_free -= _release_from(left, lease.block_ids)
        return chosen

    def _live(self, kind: LeaseKind) -> Iterable[Lease]:
        return (lease for lease in self if lease.kind is kind and lease.ending is None)


def _release_from(holders: Counter[int], block_ids: frozenset[int]) -> int:
    """Takes one holder off each block; returns how many blocks have none left."""
    freed = 0
    for block_id in block_ids:
        holders[block_id] -= 1
        freed += holders[block_id] == 0
    return freed
