"""Makes a tiny Qwen3 with random weights, for machines without a GPU and without a model hub.

Run as ``python -m deploy.local.tiny_model <folder>`` by the engines' Python. Six layers are enough for real KV blocks
and real transfers; what it writes is noise. The tokenizer is a byte-level BPE trained on the Python library's sources,
so that ordinary text has an ordinary number of tokens. Same Python and same packages give the same model.
"""

import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY_SIZE = 8000
MAX_POSITIONS = 32768
NUM_TRAINING_FILES = 150
SEED = 0

END_OF_TEXT = "<|endoftext|>"
MESSAGE_START = "<|im_start|>"
MESSAGE_END = "<|im_end|>"

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def main(folder: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(tokenizer).save_pretrained(folder)


def make_tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[END_OF_TEXT, MESSAGE_START, MESSAGE_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train(training_files(), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=MESSAGE_END, pad_token=END_OF_TEXT, model_max_length=MAX_POSITIONS
    )
    tokenizer.chat_template = CHAT_TEMPLATE.read_text()
    return tokenizer


def training_files() -> list[str]:
    """Sources of the standard library, the same ones in the same order each time."""
    library = Path(sysconfig.get_path("stdlib"))
    return [str(path) for path in sorted(library.glob("*.py"))[:NUM_TRAINING_FILES]]


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    torch.manual_seed(SEED)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_POSITIONS,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=True,
        dtype=torch.float32,
    )
    model = Qwen3ForCausalLM(config).eval()
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    return model


if __name__ == "__main__":
    main(Path(sys.argv[1]))
