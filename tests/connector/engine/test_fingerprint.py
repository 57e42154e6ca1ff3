"""What seeds digests: everything besides tokens that changes KV, and nothing that doesn't."""

from types import SimpleNamespace
from typing import Any

import pytest

from connector.engine.fingerprint import is_full_attention_only, model_fingerprint, multimodal_extra, request_seed


def a_config(**changes: Any) -> SimpleNamespace:
    values = {
        "model": "Qwen/Qwen3-32B",
        "revision": None,
        "dtype": "bfloat16",
        "quantization": None,
        "layers": 64,
        "kv_heads": 8,
        "head_size": 128,
        "rope": None,
        "cache_dtype": "auto",
        **changes,
    }
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=values["model"],
            revision=values["revision"],
            dtype=values["dtype"],
            quantization=values["quantization"],
            get_total_num_hidden_layers=lambda: values["layers"],
            get_total_num_kv_heads=lambda: values["kv_heads"],
            get_head_size=lambda: values["head_size"],
            hf_config=SimpleNamespace(rope_parameters=values["rope"]),
        ),
        cache_config=SimpleNamespace(cache_dtype=values["cache_dtype"]),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "Qwen/Qwen3-8B"},
        {"revision": "v2"},
        {"dtype": "float16"},
        {"quantization": "fp8"},
        {"layers": 32},
        {"kv_heads": 4},
        {"head_size": 64},
        {"rope": {"rope_type": "yarn", "factor": 4}},
        {"cache_dtype": "fp8"},
    ],
)
def test_what_changes_kv_changes_the_fingerprint(changes: dict[str, Any]) -> None:
    assert model_fingerprint(a_config(**changes)) != model_fingerprint(a_config())


@pytest.mark.parametrize("model", ["Qwen3-32B", "/models/Qwen3-32B", "/other/place/Qwen3-32B/"])
def test_the_same_model_at_another_path_has_the_same_fingerprint(model: str) -> None:
    assert model_fingerprint(a_config(model=model)) == model_fingerprint(a_config())


def test_a_fingerprint_is_16_stable_bytes() -> None:
    assert model_fingerprint(a_config()) == model_fingerprint(a_config())
    assert len(model_fingerprint(a_config())) == 16


def a_request(salt: str | None = None, lora: tuple[str, str] | None = None, features: Any = ()) -> SimpleNamespace:
    adapter = SimpleNamespace(lora_name=lora[0], lora_path=lora[1]) if lora else None
    return SimpleNamespace(cache_salt=salt, lora_request=adapter, mm_features=list(features))


def test_each_salt_and_adapter_has_a_seed_of_its_own() -> None:
    seeds = [
        request_seed(b"f" * 16, request)
        for request in (
            a_request(),
            a_request(salt="t1"),
            a_request(salt="t2"),
            a_request(lora=("sql", "/adapters/sql")),
            a_request(lora=("sql", "/adapters/sql-2")),
            a_request(lora=("chat", "/adapters/sql")),
            a_request(salt="t1", lora=("sql", "/adapters/sql")),
        )
    ]
    assert len(set(seeds)) == len(seeds)
    assert request_seed(b"g" * 16, a_request()) not in seeds
    assert request_seed(b"f" * 16, a_request(salt="t1")) == seeds[1]


def an_image(identifier: str, offset: int, length: int) -> SimpleNamespace:
    return SimpleNamespace(identifier=identifier, mm_position=SimpleNamespace(offset=offset, length=length))


@pytest.mark.parametrize(("start", "end", "is_touched"), [(0, 4, False), (4, 8, True), (8, 12, True), (12, 16, False)])
def test_an_image_counts_in_exactly_the_blocks_that_it_touches(start: int, end: int, is_touched: bool) -> None:
    request = a_request(features=[an_image("cat", 5, 7)])
    assert bool(multimodal_extra(request, start, end)) is is_touched


def test_images_differ_by_identity_and_by_place() -> None:
    extras = {
        multimodal_extra(a_request(features=features), 0, 8)
        for features in (
            [an_image("cat", 1, 3)],
            [an_image("dog", 1, 3)],
            [an_image("cat", 2, 3)],
            [an_image("cat", 1, 3), an_image("dog", 5, 2)],
        )
    }
    assert len(extras) == 4


class FullAttentionSpec: ...


class MLAAttentionSpec: ...


class SlidingWindowSpec: ...


@pytest.mark.parametrize(
    ("specs", "is_full"),
    [
        ([FullAttentionSpec()], True),
        ([MLAAttentionSpec()], True),
        ([SlidingWindowSpec()], False),
        ([FullAttentionSpec(), FullAttentionSpec()], False),
        ([FullAttentionSpec(), SlidingWindowSpec()], False),
        ([], False),
    ],
)
def test_only_one_group_of_full_attention_can_be_trimmed(specs: list[object], is_full: bool) -> None:
    groups = [SimpleNamespace(kv_cache_spec=spec) for spec in specs]
    assert is_full_attention_only(SimpleNamespace(kv_cache_groups=groups)) is is_full
