"""What vLLM's own cache manager keeps and allocates, group by group, against what our offers name and readers take."""

from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler import NixlBaseConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

from connector.engine.cache_shape import CacheShape, GroupKind, cache_shape
from tests.contract.scheduler_bench import a_config

BLOCK_SIZE = 4
MAX_LENGTH = 256
NUM_BLOCKS = 500
ATTENTION: dict[str, Any] = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}


def full(block_size: int = BLOCK_SIZE) -> KVCacheSpec:
    return FullAttentionSpec(block_size=block_size, **ATTENTION)


def window(num_tokens: int) -> KVCacheSpec:
    return SlidingWindowSpec(block_size=BLOCK_SIZE, sliding_window=num_tokens, **ATTENTION)


def a_cache(*specs: KVCacheSpec) -> KVCacheConfig:
    groups = [KVCacheGroupSpec([f"layer-{index}"], spec) for index, spec in enumerate(specs)]
    return KVCacheConfig(num_blocks=NUM_BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)


class Engine:
    """One engine's cache manager and vLLM's own clipping of what it exports."""

    def __init__(self, config: KVCacheConfig) -> None:
        vllm_config = a_config()
        vllm_config.scheduler_config.disable_hybrid_kv_cache_manager = False
        self.vllm = NixlBaseConnectorScheduler(vllm_config, "boot", config)
        self.manager = KVCacheManager(
            config,
            max_model_len=MAX_LENGTH,
            scheduler_block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
            enable_caching=False,
        )

    def holds(self, num_tokens: int) -> list[list[int]]:
        """What vLLM exports of a request that computed that many tokens and then ended."""
        request = a_request(num_tokens)
        assert self.manager.allocate_slots(request, num_tokens) is not None
        self.manager.remove_skipped_blocks(request.request_id, num_tokens, request.num_prompt_tokens)
        listed = self.manager.get_block_ids_for_computed_tokens(request.request_id, num_tokens)
        return [list(group) for group in self.vllm.get_exchange_clipped_blocks(listed)]

    def wants(self, num_tokens: int) -> tuple[list[list[int]], list[list[int]]]:
        """(what vLLM would fill by a load of that many tokens, the whole block table with placeholders)."""
        request = a_request(num_tokens + 1)
        is_allocated = self.manager.allocate_slots(
            request, 0, num_external_computed_tokens=num_tokens, delay_cache_blocks=True
        )
        assert is_allocated is not None
        blocks = self.manager.get_blocks(request.request_id)
        clipped = self.vllm.get_exchange_clipped_blocks(blocks.get_unhashed_block_ids_all_groups())
        return [list(group) for group in clipped], [[block.block_id for block in group] for group in blocks.blocks]


def a_request(num_tokens: int) -> Request:
    return Request(f"r-{num_tokens}", list(range(num_tokens)), SamplingParams(max_tokens=1), None)


def shape_of(config: KVCacheConfig) -> CacheShape:
    return cache_shape(config, a_config())


def positions(table: list[int], chosen: list[int]) -> list[int]:
    """Where in the sequence these blocks lie."""
    return [table.index(block) for block in chosen]


MODELS = {
    "full": (full(),),
    "two full groups": (full(), full()),
    "full and window of two blocks": (full(), window(8)),
    "full and window across blocks": (full(), window(6)),
    "two windows": (window(5), window(16)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_held", [7, 8, 9, 15, 16, 17, 18, 19, 31])
def test_where_the_offer_is_exact_each_block_of_the_reader_is_paired_with_its_own(name: str, num_held: int) -> None:
    """And where it isn't, some block that the reader would fill is one that the source has let go of."""
    config = a_cache(*MODELS[name])
    shape = shape_of(config)
    listed = shape.exported(Engine(config).holds(num_held), num_held, num_held)
    assert all(0 not in group for group in listed)
    for num_taken in range(1, num_held + 1):
        wanted, table = Engine(config).wants(num_taken)
        first_wanted = [positions(table[index], group)[0] for index, group in enumerate(wanted)]
        first_listed = [-(-num_held // BLOCK_SIZE) - len(group) for group in listed]
        has_all = all(mine >= theirs for mine, theirs in zip(first_wanted, first_listed, strict=True))
        assert shape.has(listed, num_held, num_taken) is has_all, num_taken
        if has_all:
            named = shape.cut(listed, num_held, num_taken)
            paired = paired_by_vllm(wanted, named)
            for index, (mine, theirs) in enumerate(paired):
                offset = first_listed[index]
                assert positions(table[index], mine) == [offset + listed[index].index(block) for block in theirs]


def paired_by_vllm(local: list[list[int]], remote: list[list[int]]) -> list[tuple[list[int], list[int]]]:
    worker = object.__new__(NixlPullConnectorWorker)
    worker._has_mamba = False
    mine, theirs = worker._apply_prefix_caching(local, remote, 1, 1)
    return [(list(one), list(other)) for one, other in zip(mine, theirs, strict=True)]


def test_the_token_that_vllm_computes_again_would_attend_to_a_block_that_was_let_go() -> None:
    """Why one token of the prompt is left out: vLLM itself loads all 11, keeps tokens 4 … 10, and computes the last,
    at position 10, again, which attends to position 3 as well."""
    config = a_cache(full(), window(8))
    _, table = Engine(config).wants(11)
    assert table[1][0] == 0
    _, table = Engine(config).wants(10)
    assert table[1][0] != 0
    assert shape_of(config).num_spared == 1


def test_kinds_are_told_from_vllms_own_classes() -> None:
    mamba = MambaSpec(block_size=BLOCK_SIZE, shapes=((1, 8),), dtypes=(torch.float32,))
    config = a_cache(full(), window(8), mamba, full(8))
    found = [(group.kind, group.block_size, group.window_tokens) for group in shape_of(config).groups]
    assert found == [
        (GroupKind.FULL, 4, 0),
        (GroupKind.WINDOW, 4, 8),
        (GroupKind.STATE, 4, 0),
        (GroupKind.FULL, 8, 0),
    ]
