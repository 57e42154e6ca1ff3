"""What of one request seeds its digests, and what of it no digest can tell."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.engine.digests import DigestChain
from connector.engine.fingerprint import is_described, multimodal_extra, request_seed

DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=300)
BLOCK_SIZE = 4
KEY = bytes(32)


def a_request(
    salt: str | None = None, lora: tuple[str, str] | None = None, features: Any = (), **changes: Any
) -> SimpleNamespace:
    adapter = SimpleNamespace(lora_name=lora[0], lora_path=lora[1], lora_int_id=1) if lora else None
    values = {"cache_salt": salt, "lora_request": adapter, "mm_features": list(features), "prompt_token_ids": [1]}
    return SimpleNamespace(**{**values, **changes})


def seed(stamp: bytes = b"", *, model: bytes = b"f" * 16, **request: Any) -> bytes:
    return request_seed(model, a_request(**request), stamp)


def test_each_salt_and_adapter_has_a_seed_of_its_own() -> None:
    seeds = [
        seed(),
        seed(model=b"g" * 16),
        seed(salt="t1"),
        seed(salt="t2"),
        seed(b"1", lora=("sql", "/adapters/sql")),
        seed(b"2", lora=("sql", "/adapters/sql")),
        seed(b"1", lora=("sql", "/adapters/sql-2")),
        seed(b"1", lora=("chat", "/adapters/sql")),
        seed(b"1", salt="t1", lora=("sql", "/adapters/sql")),
    ]
    assert len(set(seeds)) == len(seeds)
    assert seed(salt="t1") == seeds[2]


def test_an_adapters_number_and_the_salts_absence_do_not_count() -> None:
    other = SimpleNamespace(lora_name="sql", lora_path="/sql", lora_int_id=9)
    assert seed(lora=("sql", "/sql")) == seed(lora_request=other)
    assert seed(salt="") == seed()


TEXTS = st.text(alphabet='ab"\0\\,[]@', max_size=5)


@DETERMINISTIC
@given(TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS)
def test_no_choice_of_names_makes_two_seeds_equal(a: str, b: str, c: str, d: str, e: str, f: str) -> None:
    is_same = (a, b, c) == (d, e, f)
    assert (seed(salt=a, lora=(b, c)) == seed(salt=d, lora=(e, f))) is is_same


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, True),
        ({"prompt_token_ids": None, "prompt_embeds": object()}, False),
        ({"prompt_embeds": object()}, False),  # tokens and embeddings mixed
        ({"resumable": True}, False),
        ({"lora": ("sql", "/sql")}, True),
        ({"lora_request": SimpleNamespace(lora_name="a", lora_path="/a", lora_int_id=1, load_inplace=True)}, False),
        ({"lora_request": SimpleNamespace(lora_name="a", lora_path="/a", lora_int_id=1, load_inplace=False)}, True),
    ],
)
def test_a_request_that_digests_cannot_tell_is_known(changes: dict[str, Any], is_told: bool) -> None:
    assert is_described(a_request(**changes)) is is_told


# ---------------------------------------------------------------- multimodal items


def an_image(identifier: str, offset: int, length: int) -> SimpleNamespace:
    return SimpleNamespace(identifier=identifier, mm_position=SimpleNamespace(offset=offset, length=length))


@pytest.mark.parametrize(("start", "end", "is_touched"), [(0, 4, False), (4, 8, True), (8, 12, True), (12, 16, False)])
def test_an_image_counts_in_exactly_the_blocks_that_it_touches(start: int, end: int, is_touched: bool) -> None:
    request = a_request(features=[an_image("cat", 5, 7)])
    assert bool(multimodal_extra(request, start, end)) is is_touched


def test_image_and_position_are_told_apart() -> None:
    extras = [
        multimodal_extra(a_request(features=features), 0, 8)
        for features in (
            [an_image("cat", 2, 2)],
            [an_image("dog", 2, 2)],
            [an_image("cat", 3, 2)],
            [an_image("cat", 2, 3)],
            [an_image("cat", 2, 2), an_image("dog", 5, 2)],
            [an_image("dog", 2, 2), an_image("cat", 5, 2)],
            [an_image("cat@2", 2, 2)],
        )
    ]
    assert len(set(extras)) == len(extras)


ITEMS = st.lists(st.tuples(st.text(alphabet='ab"\0@,0', min_size=1, max_size=3), st.integers(0, 11), st.integers(1, 5)))


def items_of(block: int, items: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """What of the items a block's tokens stand for, counted one token at a time."""
    tokens = set(range(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE))
    return [item for item in items if tokens & set(range(item[1], item[1] + item[2]))]


def digests_of(request: SimpleNamespace, tokens: list[int]) -> list[bytes]:
    chain = DigestChain(KEY, b"", BLOCK_SIZE, lambda start, end: multimodal_extra(request, start, end))
    chain.extend(tokens, len(tokens))
    return chain.digests


@DETERMINISTIC
@given(ITEMS, ITEMS)
def test_digests_of_equal_tokens_agree_exactly_up_to_the_first_block_with_another_item(
    one: list[tuple[str, int, int]], other: list[tuple[str, int, int]]
) -> None:
    tokens = [7] * 12
    requests = [a_request(features=[an_image(*item) for item in items]) for items in (one, other)]
    mine, theirs = (digests_of(request, tokens) for request in requests)
    is_common = True
    for block in range(3):
        is_common = is_common and items_of(block, one) == items_of(block, other)
        assert (mine[block] == theirs[block]) is is_common
