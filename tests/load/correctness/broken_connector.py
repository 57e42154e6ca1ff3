"""Our connector with one of its guarantees taken out, to prove that the run notices. Loaded by that run's engines.

``mutation`` in ``kv_connector_extra_config`` says which one is missing.
"""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from connector.engine import connector, fence, matcher, matching, offers
from connector.engine.digests import DIGEST_BYTES
from tests.load.correctness.mutations import MUTATION_NAMES


class NixlConnector(connector.NixlConnector):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        MUTATIONS[vllm_config.kv_transfer_config.get_from_extra_config("mutation", "")]()
        super().__init__(vllm_config, role, kv_cache_config)


def replace(owner: Any, name: str, broken: Callable[..., Any]) -> None:
    """For good: the engine's process is made for this one run. Raises when the connector has no such name any more."""
    patch.object(owner, name, broken).start()


def without_verification() -> None:
    """As stock vLLM: what the source holds is taken for what the prompt says."""
    replace(matching, "num_common_blocks", lambda mine, packed: min(len(mine), len(packed) // DIGEST_BYTES))


def without_fence() -> None:
    """A source never takes back the word of a lease that has ended."""
    replace(fence.FenceMemory, "drop_word", lambda *_: None)


def without_adapter() -> None:
    """Digests that know nothing of the LoRA adapter."""
    replace(matcher, "request_seed", lambda own, request, *_: own + (request.cache_salt or "").encode())


def without_trimming() -> None:
    """vLLM is told of all blocks of an offer, of which it takes the last ones."""
    true_params = offers.KvOffer.remote_params

    def untrimmed(offer: offers.KvOffer, num_blocks: int, num_tokens: int) -> dict[str, Any]:
        whole = [list(group) for group in offer.block_ids]
        return {**true_params(offer, num_blocks, num_tokens), "remote_block_ids": whole}

    replace(offers.KvOffer, "remote_params", untrimmed)


MUTATIONS: dict[str, Callable[[], None]] = dict(
    zip(MUTATION_NAMES, (without_verification, without_fence, without_adapter, without_trimming), strict=True)
)
