"""Our digests tell apart what vLLM's own block hashes tell apart, and nothing else of a request."""

import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from connector.engine.digests import DigestChain
from connector.engine.fingerprint import is_described, multimodal_extra, request_seed

BLOCK_SIZE = 4
DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=300)
LENGTH_OF = {"cat": 2, "dog": 5}


def test_vllm_hashes_nothing_that_digests_leave_out() -> None:
    """Adapter, multimodal items and salt are in the digests; a request with prompt embeddings reuses nothing."""
    source = inspect.getsource(generate_block_hash_extra_keys)
    generators = set(re.findall(r"_gen_(\w+)_extra_hash_keys", source))
    assert generators == {"mm", "lora", "prompt_embeds"}, "seam moved: vLLM hashes something new of a request"
    assert set(re.findall(r"request\.(\w+)", source)) == {"cache_salt"}


def test_vllm_tells_adapters_apart_by_name_and_path() -> None:
    source = inspect.getsource(kv_cache_utils._gen_lora_extra_hash_keys)
    assert set(re.findall(r"lora_request\.(\w+)", source)) == {"lora_name", "lora_path"}


@pytest.mark.parametrize("field", ["prompt_embeds", "resumable", "skip_reading_prefix_cache", "lora_request"])
def test_a_request_has_the_fields_that_decide_whether_digests_tell_it(field: str) -> None:
    request = a_request([1, 2], None, None, [])
    assert hasattr(request, field), f"seam moved: Request.{field}"
    assert is_described(request)
    assert "load_inplace" in LoRARequest.__struct_fields__


def a_request(tokens: list[int], salt: str | None, adapter: tuple[str, str] | None, items: list[Any]) -> Request:
    lora = LoRARequest(lora_name=adapter[0], lora_int_id=1, lora_path=adapter[1]) if adapter else None
    features: Any = [
        SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=offset, length=LENGTH_OF[name]))
        for name, offset in items
    ]
    return Request(
        "r",
        tokens,
        SamplingParams(max_tokens=1),
        None,
        lora_request=lora,
        cache_salt=salt,
        mm_features=features,
        block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
    )


def digests(request: Request) -> list[bytes]:
    chain = DigestChain(
        bytes(32),
        request_seed(b"model", request, b""),
        BLOCK_SIZE,
        (lambda start, end: multimodal_extra(request, start, end)) if request.mm_features else None,
    )
    chain.extend(request.all_token_ids, request.num_tokens)
    return chain.digests


@st.composite
def requests(draw: st.DrawFn) -> Request:
    tokens = draw(st.lists(st.integers(0, 1), min_size=1, max_size=20))
    offsets = sorted(draw(st.lists(st.integers(0, 19), max_size=2, unique=True)))
    items = [(draw(st.sampled_from(["cat", "dog"])), offset) for offset in offsets]
    is_apart = len(items) < 2 or items[0][1] + LENGTH_OF[items[0][0]] <= items[1][1]
    return a_request(
        tokens,
        draw(st.sampled_from([None, "one", "two"])),
        draw(st.sampled_from([None, ("sql", "/sql"), ("sql", "/sql-2"), ("chat", "/sql")])),
        items if is_apart else items[:1],
    )


@pytest.fixture(scope="module", autouse=True)
def _vllms_first_hash() -> None:
    init_none_hash(sha256)


@DETERMINISTIC
@given(requests(), requests())
def test_two_requests_share_exactly_the_blocks_that_vllm_would_share(one: Request, other: Request) -> None:
    pairs = zip(digests(one), digests(other), strict=False)
    of_vllm = zip(one.block_hashes, other.block_hashes, strict=False)
    assert [mine == theirs for mine, theirs in pairs] == [mine == theirs for mine, theirs in of_vllm]
