"""vLLM's own configuration of an engine of the pair, with our connector in it and a model of two layers on paper."""

import functools
import json
from pathlib import Path

import torch
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

from connector.protocol import Role
from tests.connector.engine.builders import BLOCK_SIZE, SECRET

BOOT = {Role.PREFILL: "p-boot", Role.DECODE: "d-boot"}


@functools.cache
def a_model(folder: Path) -> ModelConfig:
    facts = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 8,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "num_hidden_layers": 2,
        "intermediate_size": 8,
        "vocab_size": 100,
        "max_position_embeddings": 512,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(facts))
    return ModelConfig(
        model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=512, enforce_eager=True
    )


@functools.cache
def a_vllm_config(folder: Path, role: Role, num_blocks: int) -> VllmConfig:
    """vLLM's own; made once per role, since it takes seconds."""
    init_none_hash(sha256)
    key_file = folder / "fleet.key"
    key_file.write_text(f"k1 {SECRET.hex()}")
    key_file.chmod(0o600)
    extra = {
        "bidirectional_kv_xfer": True,
        "backhaul_engine_name": f"{role.value}-0",
        "backhaul_link_path": str(folder / f"{role.value}.sock"),
        "backhaul_fleet_key_file": str(key_file),
        "backhaul_idle_poll_ms": 0,
        "backhaul_idle_wait_ms": 0,
        "backhaul_cpu_yield_ms": 0,
        "backhaul_policy_wait_seconds": 0,
    }
    transfer = KVTransferConfig(
        kv_connector="NixlConnector",
        kv_connector_module_path="connector.engine.connector",
        kv_role="kv_producer" if role is Role.PREFILL else "kv_consumer",
        kv_load_failure_policy="recompute",
        kv_buffer_device="cpu",
        engine_id=BOOT[role],
        kv_connector_extra_config=extra,
    )
    scheduler = SchedulerConfig(
        max_num_seqs=8,
        max_num_batched_tokens=256,
        max_model_len=512,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    config = VllmConfig(
        model_config=a_model(folder),
        cache_config=CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True),
        scheduler_config=scheduler,
        kv_transfer_config=transfer,
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.block_size = BLOCK_SIZE
    config.cache_config.num_gpu_blocks = num_blocks
    return config


def a_cache_config(num_blocks: int) -> KVCacheConfig:
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32)
    groups = [KVCacheGroupSpec(layer_names=["a", "b"], kv_cache_spec=spec)]
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
