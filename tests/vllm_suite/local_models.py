"""Run in the engines' environment: folders that stand in for the hub models that vLLM's unit tests name.

The tests read their configuration only, so there are no weights. A model's name is first looked up as a path.
"""

import sys
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import OPTConfig, PreTrainedTokenizerFast

NAMES = ("facebook/opt-125m", "facebook/opt-350m")


def make(folder: Path) -> None:
    OPTConfig(
        vocab_size=50272,
        num_hidden_layers=12,
        hidden_size=768,
        ffn_dim=3072,
        num_attention_heads=12,
        max_position_embeddings=2048,
        architectures=["OPTForCausalLM"],
    ).save_pretrained(folder)
    words = Tokenizer(models.BPE({"a": 0, "</s>": 1}, []))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="</s>").save_pretrained(folder)


if __name__ == "__main__":
    for name in NAMES:
        make(Path(sys.argv[1], name))
