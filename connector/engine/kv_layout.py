"""How an engine's KV cache lies in memory, as far as vLLM's handshake would refuse a peer that differs.

An offer states it, so that a mismatch is a reason code at matching instead of a handshake that fails in mid-turn.
"""

from typing import Any

import msgspec


class KvLayout(msgspec.Struct, frozen=True, array_like=True):
    """Of one transfer rank. An empty field is not known and is not compared.

    ``handshake_hash``: vLLM's own hash over version, connector version, model shape, dtypes and attention backend.
    ``memory_order``: order of the cache's axes (``LBHNC`` …). ``block_bytes``: bytes of one block over all regions.
    """

    handshake_hash: str = ""
    memory_order: str = ""
    block_bytes: int = 0


class _AgentFacts(msgspec.Struct):
    """The part of vLLM's ``NixlAgentMetadata`` that is compared; absent in releases that don't have it."""

    kv_cache_layout: str = ""
    block_lens: list[int] = []


def layout_of(payload: Any) -> KvLayout:
    """From the ``NixlHandshakePayload`` of one rank. Raises ``msgspec.MsgspecError`` when it can't be read."""
    facts = msgspec.msgpack.decode(payload.agent_metadata_bytes, type=_AgentFacts)
    return KvLayout(str(payload.compatibility_hash), facts.kv_cache_layout, sum(facts.block_lens))


def describe_reader(reader: Any, scheduler: Any) -> None:
    """Fills in what vLLM's configuration says of this engine's shape and of what its handshake lets pass."""
    transfer = scheduler.vllm_config.kv_transfer_config
    reader.tp_size = int(scheduler.transfer_tp_size)
    reader.dcp_size = int(scheduler.vllm_config.parallel_config.decode_context_parallel_size)
    reader.checks_build = bool(transfer.get_from_extra_config("enforce_handshake_compat", True))
    reader.ignores_memory_order = bool(getattr(scheduler.vllm_config.model_config, "use_mla", False))
    reader.permutes = bool(getattr(transfer, "enable_permute_local_kv", False))
