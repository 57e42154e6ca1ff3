"""Makes tiny models whose KV cache is not plain full attention, with random weights, for tests on real engines.

Run as ``python -m tests.e2e.other_models <kind> <folder>`` by the engines' Python. The tokenizer is the tiny Qwen3's.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GenerationConfig,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
)

from deploy.local.tiny_model import MAX_POSITIONS, SEED, make_tokenizer

SLIDING_WINDOW = 64
WEIGHT_DEVIATION = 0.08


def sliding_window(**common: Any) -> Any:
    """Gemma 3: two layers with a window of 64 tokens to each with full attention, so three cache groups."""
    config = Gemma3TextConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        query_pre_attn_scalar=64,
        sliding_window=SLIDING_WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
        **common,
    )
    return Gemma3ForCausalLM(config)


def latent(**common: Any) -> Any:
    """DeepSeek V2: multi-head latent attention, one cache group."""
    config = DeepseekV2Config(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        first_k_dense_replace=2,
        **common,
    )
    return DeepseekV2ForCausalLM(config)


def recurrent(**common: Any) -> Any:
    """Granite 4: Mamba 2 layers, every other one with full attention; no experts."""
    config = GraniteMoeHybridConfig(
        hidden_size=128,
        intermediate_size=256,
        shared_intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=0,
        num_experts_per_tok=0,
        position_embedding_type="rope",
        layer_types=["mamba", "attention"] * 2,
        mamba_n_heads=8,
        mamba_d_head=32,
        mamba_d_state=16,
        mamba_n_groups=1,
        mamba_chunk_size=32,
        **common,
    )
    return GraniteMoeHybridForCausalLM(config)


KINDS: dict[str, Callable[..., Any]] = {"sliding-window": sliding_window, "latent": latent, "recurrent": recurrent}


def main(kind: str, folder: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(SEED)
    model = KINDS[kind](
        vocab_size=len(tokenizer),
        max_position_embeddings=MAX_POSITIONS,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
        initializer_range=WEIGHT_DEVIATION,
        dtype=torch.float32,
    ).eval()
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
