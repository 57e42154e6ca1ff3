"""Requests as vLLM shows them to a connector, reduced to what ours reads."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from connector.engine.offers import KvOffer
from connector.protocol import LegEnvelope
from tests.connector.engine.builders import FLEET_KEY


def a_request(
    prompt: Sequence[int], params: dict[str, Any] | None = None, reply: Sequence[int] = (), **changes: Any
) -> Any:
    """A request of this prompt that has so far produced this reply."""
    values: dict[str, Any] = {
        "request_id": "req-1",
        "prompt_token_ids": list(prompt),
        "all_token_ids": [*prompt, *reply],
        "num_prompt_tokens": len(prompt),
        "num_tokens": len(prompt) + len(reply),
        "num_computed_tokens": max(0, len(prompt) + len(reply) - 1),
        "skip_reading_prefix_cache": False,
        "mm_features": [],
        "cache_salt": "salt-of-default",
        "lora_request": None,
        "kv_transfer_params": params,
        **changes,
    }
    return SimpleNamespace(**values)


def leg_params(envelope: LegEnvelope | None, offer: KvOffer | None = None, **changes: Any) -> dict[str, Any]:
    """``kv_transfer_params`` as a router writes them; ``changes`` are what a hostile caller adds."""
    return {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "backhaul": {
            "envelope": FLEET_KEY.sign("envelope", envelope) if envelope is not None else None,
            "offer": FLEET_KEY.sign("offer", offer) if offer is not None else None,
        },
        **changes,
    }
