"""Making leases, and what is said of them: a finished request's blocks on D (a session lease) and on P (a handoff)."""

import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from connector.engine.digests import DigestChain, pack
from connector.engine.kv_layout import KvLayout
from connector.engine.lease import Lease
from connector.engine.legs import Leg
from connector.engine.offers import OFFER_FORMAT, FenceWord, KvOffer
from connector.identity import uuid7
from connector.protocol import LeaseExtended, LeaseGranted, LeaseKind, LeaseOffer, LeaseRenewed, PolicyValues, Role


class GrantFacts(msgspec.Struct, frozen=True):
    """``block_ids: [groups][blocks]`` as vLLM would export them; the first ``num_tokens`` tokens have KV in them.

    ``fence``: (slot, generation) of the request's word.
    """

    block_ids: Any
    fence: tuple[int, int]
    num_tokens: int
    ttl_seconds: float


class LeaseFactory:
    """Fixed facts of this engine that every offer states; leases keep only what is their own."""

    def __init__(
        self,
        scheduler: Any,
        engine_name: str,
        role: Role,
        fingerprint: bytes,
        bytes_per_block: int,
        sign: Callable[[KvOffer], str],
    ) -> None:
        parallel = scheduler.vllm_config.parallel_config
        self._engine_name = engine_name
        self._role = role
        self._kind = LeaseKind.SESSION if role is Role.DECODE else LeaseKind.HANDOFF
        self._fingerprint = fingerprint
        self._sign = sign
        self._incarnation = str(scheduler.engine_id)
        self._block_size = int(scheduler.block_size)
        self._host, self._port = scheduler.side_channel_host, int(scheduler.side_channel_port)
        self._tp_size = int(scheduler.transfer_tp_size)
        self._dcp_size = int(parallel.decode_context_parallel_size)
        self._pp_size = int(parallel.pipeline_parallel_size)
        self.bytes_per_block = bytes_per_block
        self.fence_address_of_rank: dict[int, int] = {}
        self.layout = KvLayout()

    def ttl_seconds(self, policy: PolicyValues, *, can_be_read: bool) -> float:
        """0: no lease. ``policy`` is that of now: a TTL of 0 grants none, whenever the request began.

        ``can_be_read``: whether the blocks of such a model can ever be exact for the peer that a lease is for.
        """
        if not can_be_read:
            return 0.0
        if self._kind is LeaseKind.HANDOFF:
            return float(policy.kv_lease_duration)
        if not policy.bidirectional_kv_xfer:
            return 0.0
        return float(policy.decoder_kv_blocks_ttl)

    def make(self, request: Any, leg: Leg, chain: DigestChain, facts: GrantFacts) -> Lease:
        envelope = leg.envelope
        now = time.perf_counter()
        return Lease(
            lease_id=str(uuid7()),
            request_id=request.request_id,
            kind=self._kind,
            tenant=sys.intern(envelope.tenant),
            session_id=envelope.session_id,
            turn_id=envelope.turn_id,
            chain=envelope.chain,
            digest_key_id=leg.digest_key_id,
            block_ids=facts.block_ids,
            digests=pack(chain.digests[: facts.num_tokens // self._block_size]),
            tail_digest=chain.tail(request.all_token_ids, facts.num_tokens),
            num_tokens=facts.num_tokens,
            fence=facts.fence,
            granted_at=now,
            deadline=now + facts.ttl_seconds,
            policy=envelope.policy,
        )

    # ------------------------------------------------ what is said of a lease, made when it is needed

    def granted(self, lease: Lease) -> LeaseGranted:
        lease_id, session_id, turn_id = lease.texts[:3]
        return LeaseGranted(
            lease_id=lease_id,
            kind=lease.kind,
            session_id=session_id,
            turn_id=turn_id,
            tenant=lease.tenant,
            num_tokens=lease.num_tokens,
            num_blocks=lease.num_blocks,
            num_bytes=lease.num_blocks * self.bytes_per_block,
            remaining_seconds=lease.remaining_seconds(),
            pinned=lease.pinned,
        )

    def offered(self, lease: Lease) -> LeaseOffer:
        return LeaseOffer(lease=self.granted(lease), offer=self.signed_offer(lease), chain=lease.chain)

    def renewed(self, lease: Lease) -> LeaseRenewed:
        """With the offer signed anew: a reader declines by the expiry that the offer carries."""
        extended = LeaseExtended(
            lease_id=lease.lease_id, remaining_seconds=lease.remaining_seconds(), pinned=lease.pinned
        )
        return LeaseRenewed(lease=extended, offer=self.signed_offer(lease))

    def signed_offer(self, lease: Lease) -> str:
        return self._sign(self.offer(lease))

    def offer(self, lease: Lease) -> KvOffer:
        return KvOffer(
            lease_id=lease.lease_id,
            engine=self._engine_name,
            incarnation=self._incarnation,
            role=self._role,
            tenant=lease.tenant,
            model_fingerprint=self._fingerprint,
            block_size=self._block_size,
            num_tokens=lease.num_tokens,
            block_ids=lease.block_ids,
            digests=lease.digests,
            tail_digest=lease.tail_digest,
            host=self._host,
            port=self._port,
            request_id=lease.request_id,
            tp_size=self._tp_size,
            dcp_size=self._dcp_size,
            pp_size=self._pp_size,
            expires_at_source=None if lease.is_handoff else lease.deadline,
            fence_words=self._fence_words(lease.slot),
            fence_generation=lease.generation,
            digest_key_id=lease.digest_key_id,
            layout=self.layout,
            format=OFFER_FORMAT,
        )

    def _fence_words(self, slot: int) -> tuple[FenceWord, ...]:
        addresses = sorted(self.fence_address_of_rank.items())
        return tuple(FenceWord(rank, address + 8 * slot) for rank, address in addresses)
