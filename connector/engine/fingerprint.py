"""What besides tokens changes KV: the parts of the configuration and of one request that seed its digests."""

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

from connector.engine.cache_shape import CacheShape
from connector.engine.samples import sample_of

logger = logging.getLogger("vllm.backhaul.fingerprint")

PLACE_FIELDS = ("_name_or_path", "transformers_version")
"""Parts of a model's own configuration that say where it was loaded from, and by which library."""

MODEL_FIELDS = (
    "revision",
    "code_revision",
    "dtype",
    "quantization",
    "quantization_config",
    "disable_sliding_window",
    "override_attention_dtype",
    "model_impl",
    "hf_overrides",
)
CACHE_FIELDS = (
    "cache_dtype",
    "kv_cache_dtype_skip_layers",
    "calculate_kv_scales",
    "sliding_window",
    "mamba_cache_dtype",
    "mamba_ssm_cache_dtype",
)
DRAFT_FIELDS = ("method", "model", "revision", "quantization", "kv_cache_dtype", "parallel_drafting")
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")


def model_fingerprint(vllm_config: Any, shape: CacheShape) -> bytes:
    """16 bytes that are equal exactly when two engines' KV of equal tokens is interchangeable.

    A local path counts by its last part, since two hosts rarely share paths, and by samples of the weights in it; a
    model of a hub by its name and the commit it was resolved to. vLLM's own handshake hash covers backend, layout and
    connector version besides.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    folder = Path(str(model.model))
    parts = {
        "name": str(model.model).rstrip("/").rsplit("/", 1)[-1],
        "commit": getattr(model.hf_config, "_commit_hash", None),
        "weights": _sample(folder),
        "config": _own_config(model.hf_config),
        "model": {field: getattr(model, field, None) for field in MODEL_FIELDS},
        "layers": model.get_total_num_hidden_layers(),
        "kv_heads": model.get_total_num_kv_heads(),
        "head_size": model.get_head_size(),
        "cache": {field: getattr(cache, field, None) for field in CACHE_FIELDS},
        "is_long_rope": _is_long_rope(model),
        "draft": _draft(getattr(vllm_config, "speculative_config", None)),
        "groups": [(group.kind, group.block_size, group.window_tokens) for group in shape.groups],
    }
    return hashlib.blake2b(_canonical(parts), digest_size=16).digest()


def _canonical(parts: Any) -> bytes:
    """Equal for equal parts in every process, whatever they hold."""
    return json.dumps(_plain(parts)).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, dict):
        return sorted(([str(key), _plain(item)] for key, item in value.items()), key=lambda pair: str(pair[0]))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    described = str(value)
    # An object that only says where it lies in memory is told by its name.
    return getattr(value, "__qualname__", type(value).__qualname__) if " at 0x" in described else described


def _sample(folder: Path) -> str:
    """Empty for a name that isn't a local folder, and for one that can't be read: then the name alone counts."""
    if not folder.is_dir():
        return ""
    try:
        return sample_of(sorted(path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES)).hex()
    except OSError as error:
        logger.warning("The weights in %s can't be sampled: %s", folder, error)
        return ""


def _own_config(hf_config: Any) -> Any:
    """Everything that the model says of itself: rotary scaling, windows, layer types, sinks, quantization …"""
    described = dict(hf_config.to_dict()) if hasattr(hf_config, "to_dict") else dict(vars(hf_config))
    return {key: value for key, value in described.items() if key not in PLACE_FIELDS}


def _is_long_rope(model: Any) -> bool:
    """vLLM picks LongRoPE's long or short factors by the engine's own length limit, so keys depend on it."""
    original = int(getattr(model.hf_config, "original_max_position_embeddings", None) or 0)
    return 0 < original < int(getattr(model, "max_model_len", None) or 0)


def _draft(speculative: Any) -> Any:
    """A draft model's KV lies in the cache too; other ways to guess tokens leave nothing there."""
    if speculative is None or not speculative.use_eagle():
        return None
    draft = getattr(speculative, "draft_model_config", None)
    layers = getattr(getattr(draft, "hf_config", None), "eagle_aux_hidden_state_layer_ids", None)
    return {"layers": layers, **{field: getattr(speculative, field, None) for field in DRAFT_FIELDS}}


# ---------------------------------------------------------------- one request


def is_described(request: Any) -> bool:
    """Whether digests can tell all that this request's KV depends on.

    Not for embeddings in place of tokens, whose positions all carry the same token; nor for a request that its client
    goes on extending, whose tokens vLLM rewrites; nor for an adapter that is loaded anew for each step.
    """
    is_tokens_only = request.prompt_token_ids is not None and getattr(request, "prompt_embeds", None) is None
    is_fixed = not getattr(request, "resumable", False)
    return is_tokens_only and is_fixed and not getattr(request.lora_request, "load_inplace", False)


def request_seed(fingerprint: bytes, request: Any, adapter_stamp: bytes) -> bytes:
    """Model, cache salt and LoRA adapter of one request; ``adapter_stamp`` is of the adapter's files."""
    lora = request.lora_request
    adapter = (lora.lora_name, lora.lora_path, adapter_stamp.hex()) if lora is not None else ()
    return _canonical((fingerprint.hex(), request.cache_salt or "", adapter))


def multimodal_extra(request: Any, start: int, end: int) -> bytes:
    """Identifiers and positions of the multimodal items that touch tokens ``[start, end)``; empty for none."""
    found: list[tuple[str, int, int]] = []
    for feature in request.mm_features:
        offset, length = feature.mm_position.offset, feature.mm_position.length
        if offset < end and offset + length > start:
            found.append((feature.identifier, offset - start, length))
    return _canonical(found) if found else b""
