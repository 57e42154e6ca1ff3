"""What a router and a peer of ours make of a request whose transfer params vLLM's tests wrote in the clear."""

import itertools
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from connector.engine.digests import pack
from connector.engine.offers import OFFER_FORMAT, FenceWord, KvOffer
from connector.engine.offers import PURPOSE as OFFER_PURPOSE
from connector.protocol import LegEnvelope, Role

TENANT = "suite"
GENERATION = 1
"""What every fence word of a peer in these tests says; the worker's stand-in answers with it."""
PAST_THE_PROMPT = 7
"""The token of which the rest of a source's sequence consists, where it holds more than the prompt."""
ONLY_STOCK_SAYS = {"transfer_mode": "pull"}
"""For routers that can't tell a pull producer from a push producer by the offer itself."""


def sign(params: dict[str, Any], request: Any, scheduler: Any) -> None:
    """Adds the envelope, and the offer of a peer that holds the same tokens as far as it holds any."""
    key = scheduler.fleet_key.current
    envelope = LegEnvelope(
        leg=scheduler.role,
        tenant=TENANT,
        session_id=request.request_id,
        turn_id=request.request_id,
        expires_unix=time.time() + 600,
    )
    ours: dict[str, Any] = {"envelope": key.sign("envelope", envelope), "offer": None}
    if params.get("remote_block_ids"):
        ours["offer"] = key.sign(OFFER_PURPOSE, _offer({**params, "backhaul": ours}, request, scheduler))
    params["backhaul"] = ours


def _offer(params: dict[str, Any], request: Any, scheduler: Any) -> KvOffer:
    num_tokens = params.get("remote_num_tokens") or request.num_prompt_tokens
    tokens = [*request.prompt_token_ids, *itertools.repeat(PAST_THE_PROMPT, num_tokens)][:num_tokens]
    leg = scheduler.matcher.open(request, dict(params), scheduler.live_policy.values)
    seen_by_peer = SimpleNamespace(
        all_token_ids=tokens,
        mm_features=request.mm_features,
        cache_salt=request.cache_salt,
        lora_request=request.lora_request,
    )
    chain = scheduler.matcher.digest(seen_by_peer, leg, num_tokens)
    return KvOffer(
        lease_id=f"lease-{request.request_id}",
        engine="peer",
        incarnation=str(params["remote_engine_id"]),
        role=Role.DECODE if scheduler.role is Role.PREFILL else Role.PREFILL,
        tenant=TENANT,
        model_fingerprint=scheduler.matcher.reader.fingerprint,
        block_size=scheduler.block_size,
        num_tokens=num_tokens,
        block_ids=_grouped(params["remote_block_ids"]),
        digests=pack(chain.digests),
        tail_digest=chain.tail(tokens, num_tokens),
        host=params["remote_host"],
        port=params["remote_port"],
        request_id=params["remote_request_id"],
        tp_size=params.get("tp_size", 1),
        dcp_size=1,
        pp_size=1,
        expires_at_source=params.get("remote_blocks_expiry_time"),
        fence_words=(FenceWord(0, 0x1000),),
        fence_generation=GENERATION,
        digest_key_id=scheduler.fleet_key.current.active_id,
        layout=scheduler.matcher.reader.layout,
        format=OFFER_FORMAT,
    )


def _grouped(block_ids: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Some tests name one list of blocks, some a list per group."""
    groups = block_ids if isinstance(block_ids[0], Sequence) else (block_ids,)
    return tuple(tuple(group) for group in groups)


def in_the_clear(answer: dict[str, Any] | None, token: str | None, scheduler: Any) -> dict[str, Any] | None:
    """The engine's answer with vLLM's own fields: P's from its signed offer, D's from the one it gave the feed."""
    if answer is not None and "backhaul" in answer:
        token = answer["backhaul"]["offer"]
    if token is None:
        return answer
    offer = scheduler.fleet_key.current.verify(OFFER_PURPOSE, token, KvOffer)
    is_prefill = scheduler.role is Role.PREFILL
    return {
        "do_remote_prefill": is_prefill,
        "do_remote_decode": not is_prefill,
        **offer.remote_params(max(map(len, offer.block_ids)), offer.num_tokens),
        **ONLY_STOCK_SAYS,
    }
