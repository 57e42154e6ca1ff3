"""Makes the two-layer Qwen3 of the correctness run, and two LoRA adapters for it.

Run as ``python -m tests.load.correctness.tiny_models <folder>`` by the engines' Python: leaves ``model``, ``adapter-a``
and ``adapter-b`` there. Its weights are drawn wide, so that wrong KV shows: of a prompt of 690 tokens one foreign block
moves one of the top five log-probabilities by 0.27 or more, one foreign token by 0.017 or more, float noise by 1e-5.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from deploy.local.tiny_model import make_tokenizer

NUM_LAYERS = 2
HIDDEN_SIZE = 256
INTERMEDIATE_SIZE = 512
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 64
MAX_POSITIONS = 4096
SEED = 20
WEIGHT_DEVIATION = 0.08

LORA_RANK = 8
LORA_DEVIATION = 0.15
ADAPTERS = {"adapter-a": 1, "adapter-b": 2}
"""Name and seed."""


def main(folder: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder / "model")
    make_model(len(tokenizer)).save_pretrained(folder / "model")
    for name, seed in ADAPTERS.items():
        write_adapter(folder / name, seed)


def make_model(vocabulary_size: int) -> Qwen3ForCausalLM:
    torch.manual_seed(SEED)
    config = Qwen3Config(
        vocab_size=vocabulary_size,
        hidden_size=HIDDEN_SIZE,
        intermediate_size=INTERMEDIATE_SIZE,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        initializer_range=WEIGHT_DEVIATION,
        tie_word_embeddings=True,
        dtype=torch.float32,
    )
    return Qwen3ForCausalLM(config).eval()


def write_adapter(folder: Path, seed: int) -> None:
    """An adapter of PEFT's format on key, value and output projections: it changes KV in every layer."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    sizes = {
        "k_proj": (HIDDEN_SIZE, NUM_KV_HEADS * HEAD_DIM),
        "o_proj": (NUM_HEADS * HEAD_DIM, HIDDEN_SIZE),
        "v_proj": (HIDDEN_SIZE, NUM_KV_HEADS * HEAD_DIM),
    }
    weights = {}
    for layer in range(NUM_LAYERS):
        for module, (inputs, outputs) in sizes.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(LORA_RANK, inputs, generator=generator) * LORA_DEVIATION
            weights[f"{prefix}.lora_B.weight"] = torch.randn(outputs, LORA_RANK, generator=generator) * LORA_DEVIATION
    torch.save(weights, folder / "adapter_model.bin")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": LORA_RANK, "lora_alpha": LORA_RANK, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "target_modules": sorted(sizes)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
