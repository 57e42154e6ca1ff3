"""What besides tokens changes KV: the parts of the configuration and of one request that seed its digests."""

import hashlib
from typing import Any

FULL_ATTENTION_KINDS = ("FullAttentionSpec", "MLAAttentionSpec")


def model_fingerprint(vllm_config: Any) -> bytes:
    """16 bytes that are equal exactly when two engines' KV of equal tokens is interchangeable.

    The model's name must mean the same weights on both sides; a local path counts by its last part, since two hosts
    rarely share paths. vLLM's own handshake hash covers backend, layout and connector version besides.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parts = (
        str(model.model).rstrip("/").rsplit("/", 1)[-1],
        str(model.revision),
        str(model.dtype),
        str(cache.cache_dtype),
        str(model.quantization),
        str(model.get_total_num_hidden_layers()),
        str(model.get_total_num_kv_heads()),
        str(model.get_head_size()),
        str(getattr(model.hf_config, "rope_parameters", None)),
    )
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()


def request_seed(fingerprint: bytes, request: Any) -> bytes:
    """Model, cache salt and LoRA adapter of one request."""
    lora = request.lora_request
    adapter = f"{lora.lora_name}\0{lora.lora_path}" if lora is not None else ""
    salt = request.cache_salt or ""
    return b"\0".join((fingerprint.hex().encode(), salt.encode(), adapter.encode()))


def multimodal_extra(request: Any, start: int, end: int) -> bytes:
    """Hashes and positions of the multimodal items that touch tokens ``[start, end)``."""
    found: list[str] = []
    for feature in request.mm_features:
        offset, length = feature.mm_position.offset, feature.mm_position.length
        if offset < end and offset + length > start:
            found.append(f"{feature.identifier}@{offset - start}")
    return "\0".join(found).encode()


def is_full_attention_only(kv_cache_config: Any) -> bool:
    """Whether any whole-block prefix of a request's blocks is valid by itself."""
    groups = kv_cache_config.kv_cache_groups
    return len(groups) == 1 and type(groups[0].kv_cache_spec).__name__ in FULL_ATTENTION_KINDS
