"""Making leases: what a finished request's blocks become on D (a session lease) and on P (a handoff)."""

import time
from typing import Any

import msgspec

from connector.engine.digests import DigestChain, pack
from connector.engine.kv_layout import KvLayout
from connector.engine.leases import Lease
from connector.engine.legs import Leg
from connector.engine.offers import OFFER_FORMAT, FenceWord, KvOffer
from connector.identity import uuid7
from connector.protocol import LeaseKind, PolicyValues, Role


class GrantFacts(msgspec.Struct, frozen=True):
    """``block_ids: [groups][blocks]`` as vLLM would export them; the first ``num_tokens`` tokens have KV in them.

    ``fence``: (slot, generation) of the request's word.
    """

    block_ids: Any
    fence: tuple[int, int]
    num_tokens: int
    ttl_seconds: float


class LeaseFactory:
    """Fixed facts of this engine that every offer states."""

    def __init__(self, scheduler: Any, engine_name: str, role: Role, fingerprint: bytes, bytes_per_block: int) -> None:
        parallel = scheduler.vllm_config.parallel_config
        self._engine_name = engine_name
        self._role = role
        self._kind = LeaseKind.SESSION if role is Role.DECODE else LeaseKind.HANDOFF
        self._fingerprint = fingerprint
        self._incarnation = str(scheduler.engine_id)
        self._block_size = int(scheduler.block_size)
        self._host, self._port = scheduler.side_channel_host, int(scheduler.side_channel_port)
        self._tp_size = int(scheduler.transfer_tp_size)
        self._dcp_size = int(parallel.decode_context_parallel_size)
        self._pp_size = int(parallel.pipeline_parallel_size)
        self.bytes_per_block = bytes_per_block
        self.fence_address_of_rank: dict[int, int] = {}
        self.layout = KvLayout()

    def ttl_seconds(self, policy: PolicyValues, *, allow_partial: bool) -> float:
        """0: no lease. ``policy`` is that of now: a TTL of 0 grants none, whenever the request began."""
        if self._kind is LeaseKind.HANDOFF:
            return float(policy.kv_lease_duration)
        if not policy.bidirectional_kv_xfer or not allow_partial:
            return 0.0
        return float(policy.decoder_kv_blocks_ttl)

    def make(self, request: Any, leg: Leg, chain: DigestChain, facts: GrantFacts) -> Lease:
        envelope = leg.envelope
        now = time.perf_counter()
        offer = self._offer(request, leg, chain, facts, now)
        held = frozenset(block for group in facts.block_ids for block in group)
        return Lease(
            lease_id=offer.lease_id,
            request_id=request.request_id,
            kind=self._kind,
            tenant=envelope.tenant,
            session_id=envelope.session_id,
            turn_id=envelope.turn_id,
            traceparent=envelope.traceparent,
            chain=envelope.chain,
            offer=offer,
            block_ids=held,
            num_bytes=len(held) * self.bytes_per_block,
            renewed_at=now,
            deadline=now + facts.ttl_seconds,
            has_own_ttl=envelope.policy is not None and envelope.policy.decoder_kv_blocks_ttl is not None,
        )

    def _offer(self, request: Any, leg: Leg, chain: DigestChain, facts: GrantFacts, now: float) -> KvOffer:
        slot, generation = facts.fence
        return KvOffer(
            lease_id=str(uuid7()),
            engine=self._engine_name,
            incarnation=self._incarnation,
            role=self._role,
            tenant=leg.envelope.tenant,
            model_fingerprint=self._fingerprint,
            block_size=self._block_size,
            num_tokens=facts.num_tokens,
            block_ids=tuple(tuple(group) for group in facts.block_ids),
            digests=pack(chain.digests[: facts.num_tokens // self._block_size]),
            tail_digest=chain.tail(request.all_token_ids, facts.num_tokens),
            host=self._host,
            port=self._port,
            request_id=request.request_id,
            tp_size=self._tp_size,
            dcp_size=self._dcp_size,
            pp_size=self._pp_size,
            expires_at_source=now + facts.ttl_seconds if self._kind is LeaseKind.SESSION else None,
            fence_words=self._fence_words(slot),
            fence_generation=generation,
            digest_key_id=leg.digest_key_id,
            layout=self.layout,
            format=OFFER_FORMAT,
        )

    def _fence_words(self, slot: int) -> tuple[FenceWord, ...]:
        addresses = sorted(self.fence_address_of_rank.items())
        return tuple(FenceWord(rank, address + 8 * slot) for rank, address in addresses)
