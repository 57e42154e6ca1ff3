"""The model's part of what seeds digests: everything besides tokens that changes KV, and nothing that doesn't."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connector.engine.cache_shape import CacheGroup, CacheShape, GroupKind, plain_shape
from connector.engine.fingerprint import model_fingerprint

BLOCK_SIZE = 4
PLAIN = plain_shape(BLOCK_SIZE)


class AnHfConfig:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class ADraft:
    def __init__(self, method: str, model: str = "draft", layers: tuple[int, ...] = ()) -> None:
        self.method, self.model = method, model
        hf_config = SimpleNamespace(eagle_aux_hidden_state_layer_ids=layers)
        self.draft_model_config = SimpleNamespace(hf_config=hf_config)

    def use_eagle(self) -> bool:
        return self.method in ("eagle", "eagle3", "mtp")


def a_config(**changes: Any) -> SimpleNamespace:
    """``hf_…``: the model's own configuration; ``cache_…``: vLLM's of the cache; others are vLLM's of the model."""
    hf = {key[3:]: value for key, value in changes.items() if key.startswith("hf_") and key != "hf_overrides"}
    cache = {key[6:]: value for key, value in changes.items() if key.startswith("cache_")}
    draft = changes.pop("draft", None)
    others = {key: value for key, value in changes.items() if key[:3] != "hf_" and key[:6] != "cache_"}
    values = {"model": "Qwen/Qwen3-32B", "dtype": "bfloat16", "layers": 64, "kv_heads": 8, "head_size": 128, **others}
    if "hf_overrides" in changes:
        values["hf_overrides"] = changes["hf_overrides"]
    model = SimpleNamespace(
        **{key: value for key, value in values.items() if key not in ("layers", "kv_heads", "head_size")},
        hf_config=AnHfConfig(**{"model_type": "qwen3", "rope_theta": 1e6, **hf}),
        get_total_num_hidden_layers=lambda: values["layers"],
        get_total_num_kv_heads=lambda: values["kv_heads"],
        get_head_size=lambda: values["head_size"],
    )
    cache_config = SimpleNamespace(**{"cache_dtype": "auto", **cache})
    return SimpleNamespace(model_config=model, cache_config=cache_config, speculative_config=draft)


def fingerprint(shape: CacheShape = PLAIN, **changes: Any) -> bytes:
    return model_fingerprint(a_config(**changes), shape)


# ---------------------------------------------------------------- the model


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "Qwen/Qwen3-8B"},
        {"revision": "v2"},
        {"code_revision": "v2"},
        {"hf__commit_hash": "0123abcd"},
        {"dtype": "float16"},
        {"quantization": "fp8"},
        {"quantization_config": {"bits": 4}},
        {"layers": 32},
        {"kv_heads": 4},
        {"head_size": 64},
        {"disable_sliding_window": True},
        {"override_attention_dtype": "float32"},
        {"model_impl": "transformers"},
        {"hf_overrides": {"rope_theta": 1}},
        {"hf_rope_theta": 1e4},
        {"hf_rope_parameters": {"rope_type": "yarn", "factor": 4}},
        {"hf_sliding_window": 1024},
        {"hf_layer_types": ["sliding_attention", "full_attention"]},
        {"hf_quantization_config": {"quant_method": "awq"}},
        {"hf_attention_sink_size": 4},
        {"hf_num_attention_heads": 16},
        {"cache_cache_dtype": "fp8"},
        {"cache_kv_cache_dtype_skip_layers": ["0"]},
        {"cache_calculate_kv_scales": True},
        {"cache_mamba_ssm_cache_dtype": "float16"},
        {"draft": ADraft("eagle3")},
        {"hf_original_max_position_embeddings": 4096, "max_model_len": 8192},
    ],
)
def test_what_changes_kv_changes_the_fingerprint(changes: dict[str, Any]) -> None:
    assert fingerprint(**changes) != fingerprint()


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "Qwen3-32B"},
        {"model": "/models/Qwen3-32B"},
        {"model": "/other/place/Qwen3-32B/"},
        {"hf__name_or_path": "/models/Qwen3-32B"},
        {"hf_transformers_version": "4.57"},
        {"tokenizer": "/other/tokenizer"},
        {"served_model_name": "other"},
        {"enforce_eager": True},
        {"max_model_len": 1000},
        {"seed": 7},
        {"cache_gpu_memory_utilization": 0.5},
        {"cache_enable_prefix_caching": False},
        {"draft": ADraft("ngram")},
    ],
)
def test_what_leaves_kv_alone_leaves_the_fingerprint_alone(changes: dict[str, Any]) -> None:
    assert fingerprint(**changes) == fingerprint()


def test_long_and_short_factors_of_longrope_are_told_apart_by_the_engines_own_limit() -> None:
    def limited(limit: int) -> bytes:
        return fingerprint(hf_original_max_position_embeddings=4096, max_model_len=limit)

    assert limited(1000) == limited(4096) != limited(4097) == limited(100000)


def test_drafts_of_another_model_or_other_layers_are_told_apart() -> None:
    drafts = [ADraft("eagle3"), ADraft("eagle"), ADraft("eagle3", "other"), ADraft("eagle3", layers=(1, 2))]
    assert len({fingerprint(draft=draft) for draft in drafts}) == len(drafts)


def test_engines_that_group_their_caches_differently_do_not_share() -> None:
    groups = [
        (CacheGroup(GroupKind.FULL, 4),),
        (CacheGroup(GroupKind.FULL, 8),),
        (CacheGroup(GroupKind.FULL, 4), CacheGroup(GroupKind.FULL, 4)),
        (CacheGroup(GroupKind.FULL, 4), CacheGroup(GroupKind.WINDOW, 4, 8)),
        (CacheGroup(GroupKind.FULL, 4), CacheGroup(GroupKind.WINDOW, 4, 16)),
        (CacheGroup(GroupKind.WINDOW, 4, 8), CacheGroup(GroupKind.FULL, 4)),
    ]
    assert len({fingerprint(CacheShape(shape)) for shape in groups}) == len(groups)


def test_weights_of_a_local_model_count_wherever_they_lie(tmp_path: Path) -> None:
    def stored(place: str, weights: bytes, note: str = "") -> bytes:
        folder = tmp_path / place / "tuned"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "tokenizer.json").write_text(note)
        return fingerprint(model=str(folder))

    one = stored("here", b"a" * 100)
    assert stored("there", b"a" * 100, "another tokenizer") == one
    assert stored("elsewhere", b"a" * 99 + b"b") != one


def test_a_fingerprint_is_the_same_in_every_process_whatever_the_configuration_holds() -> None:
    def overrides() -> dict[str, Any]:
        return {
            "hf_overrides": lambda config: config,
            "hf_id2label": {0: "a", "one": "b"},
            "hf_parts": {"set": {"b", "a"}, "object": object(), "nested": AnHfConfig()},
        }

    assert fingerprint(**overrides()) == fingerprint(**overrides())
    assert fingerprint(**overrides()) != fingerprint()


def test_weights_that_cannot_be_read_do_not_stop_the_engine(tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(tmp_path / "gone")
    assert fingerprint(model=str(folder)) == fingerprint(model="tuned")


def test_a_fingerprint_is_16_stable_bytes() -> None:
    assert fingerprint() == fingerprint()
    assert len(fingerprint()) == 16
