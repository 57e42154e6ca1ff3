"""The end of a request: whether its blocks are kept, for whom, and what the engine's answer says of it.

Scheduler thread only. Nothing here raises into vLLM: what fails means no lease.
"""

import logging
from collections.abc import Callable
from typing import Any

from vllm.v1.request import RequestStatus

from connector.engine import guards
from connector.engine.digests import DigestChain
from connector.engine.grants import GrantFacts
from connector.engine.lease import Lease
from connector.engine.legs import Leg
from connector.engine.policy import for_request
from connector.protocol import Decision, LegReply, Role

logger = logging.getLogger("vllm.backhaul.endings")

FINISHED_CLEANLY = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)

KeptAndParams = tuple[bool, dict[str, Any] | None]
"""vLLM's answer of ``request_finished``: whether to keep the blocks, and what the response carries."""


class RequestEndings:
    """``scheduler`` is ours; ``finish_in_vllm`` is ``request_finished`` as vLLM 0.32 has it."""

    def __init__(self, scheduler: Any, finish_in_vllm: Callable[[Any, Any], KeptAndParams]) -> None:
        self._scheduler = scheduler
        self._finish_in_vllm = finish_in_vllm

    def _finish_bare(self, request: Any, _block_ids: Any) -> KeptAndParams:
        """After an exception: the blocks are freed at once, unless vLLM has already told the workers to keep them."""
        scheduler, params = self._scheduler, request.kv_transfer_params
        self._forget(request.request_id)
        if request.request_id in scheduler._reqs_need_send:
            return True, None
        if params and params.get("do_remote_prefill") and params.get("remote_engine_id"):
            scheduler._reqs_need_recv[request.request_id] = (request, [], (), False)
            params["do_remote_prefill"] = False
        scheduler._stop_heartbeat(request.request_id)
        scheduler._reqs_not_processed.add(request.request_id)
        return False, None

    @guards.contained(_finish_bare)
    def finish(self, request: Any, block_ids: Any) -> KeptAndParams:
        """The blocks are kept only for a leg with an envelope and a free fence slot."""
        leg = self._scheduler.legs.get(request.request_id)
        params = request.kv_transfer_params
        if not params or params.get("do_remote_prefill") or request.status not in FINISHED_CLEANLY:
            return self._finish_without_lease(request, block_ids, leg)
        if leg is None:
            # Without an envelope P still serves stock peers; D keeps nothing, since nobody could be offered it.
            is_prefill = bool(params.get("do_remote_decode"))
            return self._finish_in_vllm(request, block_ids) if is_prefill else self._decline_lease(request)
        return self._finish_leg(request, block_ids, leg)

    def _finish_without_lease(self, request: Any, block_ids: Any, leg: Leg | None) -> KeptAndParams:
        params = request.kv_transfer_params
        if params and params.get("do_remote_prefill") and (leg is None or leg.source is None):
            # Never scheduled. vLLM would notify the source so that it frees its blocks, but there is none to name.
            params["do_remote_prefill"] = False
        result = self._finish_in_vllm(request, block_ids)
        self._forget(request.request_id)
        return result[0], (None if leg is not None else result[1])

    def _decline_lease(self, request: Any) -> KeptAndParams:
        self._scheduler._stop_heartbeat(request.request_id)
        self._scheduler._reqs_not_processed.add(request.request_id)
        self._forget(request.request_id)
        return False, None

    @guards.contained(guards.nothing)
    def _forget(self, request_id: str) -> None:
        self._scheduler.legs.pop(request_id, None)
        self._scheduler.fence.drop(request_id)

    def _finish_leg(self, request: Any, block_ids: Any, leg: Leg) -> KeptAndParams:
        scheduler = self._scheduler
        scheduler.report_leg(leg)
        fence = scheduler.fence.word_of(request.request_id)
        policy = for_request(scheduler.live_policy.values, leg.envelope.policy)
        ttl_seconds = scheduler.factory.ttl_seconds(policy, can_be_read=scheduler.matcher.can_be_read)
        can_offer = scheduler.factory.fence_address_of_rank and scheduler.matcher.can_digest(request)
        if fence is None or ttl_seconds <= 0 or not can_offer:
            return self._decline_lease(request)
        try:
            num_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
            chain = scheduler.matcher.digest(request, leg, num_tokens)
        except Exception:
            guards.num_contained["request_finished"] += 1
            logger.exception("No lease for %s", request.request_id)
            return self._decline_lease(request)
        # vLLM reads both attributes when it sets this request's deadline.
        scheduler._kv_lease_duration = policy.kv_lease_duration
        scheduler.decoder_kv_blocks_ttl = policy.decoder_kv_blocks_ttl
        is_kept, exported = self._finish_in_vllm(request, block_ids)
        if not is_kept or exported is None:
            self._forget(request.request_id)
            return is_kept, None
        shape = scheduler.matcher.shape
        listed = shape.exported(exported["remote_block_ids"], request.num_computed_tokens, num_tokens)
        facts = GrantFacts(listed, fence, num_tokens, ttl_seconds)
        return True, self._grant(request, leg, chain, facts)

    def _covers(self, request: Any, leg: Leg, old: Lease) -> bool:
        """Whether this request's tokens begin with the older lease's, partial last block included.

        Its tail digest chains over all of them; after a rotation it takes the key that it was made with.
        """
        try:
            chain = self._scheduler.matcher.digest(request, leg, old.num_tokens, old.digest_key_id)
        except KeyError:
            return False
        return chain.tail(request.all_token_ids, old.num_tokens) == old.tail_digest

    def _grant_nothing(self, request: Any, *_: Any) -> None:
        """vLLM keeps the blocks until the TTL; nobody is offered them."""
        self._scheduler.legs.pop(request.request_id, None)

    @guards.contained(_grant_nothing)
    def _grant(self, request: Any, leg: Leg, chain: DigestChain, facts: GrantFacts) -> dict[str, Any] | None:
        """What goes into the engine's answer: P's offer for D; nothing of D's, whose lease travels by the feed."""
        scheduler = self._scheduler
        lease = scheduler.factory.make(request, leg, chain, facts)
        scheduler.control.grant(lease, leg.envelope.replaces, lambda old: self._covers(request, leg, old))
        scheduler.fence.leased(request.request_id)
        scheduler.legs.pop(request.request_id, None)
        if scheduler.role is Role.DECODE:
            return None
        reply = LegReply(
            offer=scheduler.factory.signed_offer(lease),
            decision=leg.decision or Decision.NO_PLACEMENT,
            num_pulled_tokens=leg.num_pulled_tokens,
            lease_id=lease.lease_id,
            diverged_at_token=leg.diverged_at_token,
        )
        return {"backhaul": {field: getattr(reply, field) for field in reply.__struct_fields__}}
