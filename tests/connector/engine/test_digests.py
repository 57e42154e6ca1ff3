"""Block digests: equal exactly when everything that changes KV is equal, however the sequence grew."""

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.engine.digests import DIGEST_BYTES, DigestChain, num_common_blocks, pack
from tests.connector.engine.builders import SECRET, SEED, chain_of, naive_common_blocks

DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=150)
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)
NARROW_TOKENS = st.lists(st.integers(0, 2), max_size=24)
BLOCK_SIZES = st.integers(1, 9)


@DETERMINISTIC
@given(TOKENS, BLOCK_SIZES, st.lists(st.integers(0, 40), max_size=6))
def test_growing_step_by_step_equals_digesting_at_once(tokens: list[int], block_size: int, stops: list[int]) -> None:
    grown = DigestChain(SECRET, SEED, block_size)
    for stop in sorted(stops):
        grown.extend(tokens, min(stop, len(tokens)))
    grown.extend(tokens, len(tokens))
    assert grown.digests == chain_of(tokens, block_size).digests
    assert grown.tail(tokens, len(tokens)) == chain_of(tokens, block_size).tail(tokens, len(tokens))


@DETERMINISTIC
@given(TOKENS, BLOCK_SIZES)
def test_there_is_one_digest_per_whole_block(tokens: list[int], block_size: int) -> None:
    digests = chain_of(tokens, block_size).digests
    assert len(digests) == len(tokens) // block_size
    assert all(len(digest) == DIGEST_BYTES for digest in digests)
    assert len(set(digests)) == len(digests)


@DETERMINISTIC
@given(TOKENS.filter(bool), BLOCK_SIZES, st.data())
def test_one_changed_token_changes_its_block_and_all_later_ones(
    tokens: list[int], block_size: int, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(tokens) - 1))
    changed = [*tokens[:at], tokens[at] ^ 1, *tokens[at + 1 :]]
    before, after = chain_of(tokens, block_size), chain_of(changed, block_size)
    block = at // block_size
    assert before.digests[:block] == after.digests[:block]
    assert all(old != new for old, new in zip(before.digests[block:], after.digests[block:], strict=True))
    assert before.tail(tokens, len(tokens)) != after.tail(changed, len(tokens))


@DETERMINISTIC
@given(NARROW_TOKENS, NARROW_TOKENS, BLOCK_SIZES)
def test_num_common_blocks_is_the_naive_common_prefix(mine: list[int], theirs: list[int], block_size: int) -> None:
    found = num_common_blocks(chain_of(mine, block_size).digests, pack(chain_of(theirs, block_size).digests))
    assert found == naive_common_blocks(mine, theirs, block_size)


@DETERMINISTIC
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_num_common_blocks_finds_every_length(shared: int, mine: int, theirs: int) -> None:
    prefix = list(range(shared))
    left = chain_of([*prefix, *([1_000_001] * mine)], 1).digests
    right = pack(chain_of([*prefix, *([1_000_002] * theirs)], 1).digests)
    assert num_common_blocks(left, right) == shared


def test_a_truncated_digest_of_a_peer_does_not_count() -> None:
    digests = chain_of(range(8)).digests
    assert num_common_blocks(digests, pack(digests)[:-1]) == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"key": b"other key of the fleet, 32 bytes"}, id="fleet key"),
        pytest.param({"seed": b"another model, salt or adapter"}, id="seed"),
    ],
)
def test_another_key_or_seed_shares_no_block(change: dict[str, bytes]) -> None:
    tokens = range(16)
    here = chain_of(tokens)
    there = chain_of(tokens, **change)  # type: ignore[arg-type]  # both keys of the dict are such arguments
    assert not set(here.digests) & set(there.digests)
    assert here.tail(tokens, 16) != there.tail(tokens, 16)
    assert num_common_blocks(here.digests, pack(there.digests)) == 0


def image_at(position: int, identity: bytes) -> Callable[[int, int], bytes]:
    return lambda start, end: identity if start <= position < end else b""


def with_extra(extra: Callable[[int, int], bytes] | None) -> DigestChain:
    chain = DigestChain(SECRET, SEED, 4, extra)
    chain.extend(range(14), 14)
    return chain


def test_extra_bytes_change_their_block_and_all_later_ones() -> None:
    plain, cat, dog = (with_extra(extra) for extra in (None, image_at(5, b"cat"), image_at(5, b"dog")))
    assert plain.digests[0] == cat.digests[0] == dog.digests[0]
    for block in (1, 2):
        assert len({plain.digests[block], cat.digests[block], dog.digests[block]}) == 3


def test_extra_bytes_of_the_partial_block_change_the_tail_only() -> None:
    cat, dog = with_extra(image_at(13, b"cat")), with_extra(image_at(13, b"dog"))
    assert cat.digests == dog.digests
    assert cat.tail(range(14), 14) != dog.tail(range(14), 14)


def test_tail_covers_exactly_the_tokens_it_is_asked_for() -> None:
    chain = chain_of(range(12))
    tails = [chain.tail(range(12), num_tokens) for num_tokens in range(13)]
    assert len(set(tails)) == 13
    assert chain.tail([*range(6), 99, 99], 6) == tails[6]


def test_tail_of_whole_blocks_is_no_block_digest() -> None:
    chain = chain_of(range(8))
    assert chain.tail(range(8), 8) not in chain.digests


def test_extending_to_fewer_tokens_changes_nothing() -> None:
    chain = chain_of(range(8))
    before = list(chain.digests)
    chain.extend(range(8), 3)
    assert chain.digests == before


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_id_beyond_32_bits_is_an_error_and_never_wraps(token: int) -> None:
    with pytest.raises(OverflowError):
        chain_of([token, 0, 0, 0])


def test_a_digest_is_blake2b_of_the_one_before_the_tokens_and_their_extra_bytes() -> None:
    """What two engines of one fleet must agree on, written down independently."""
    chain = DigestChain(SECRET, SEED, 2, lambda start, end: b"x%d-%d" % (start, end))
    chain.extend([1, 2, 3, 4, 5], 5)
    expected = [hashlib.blake2b(SEED, key=SECRET, digest_size=16, person=b"bh-seed").digest()]
    for tokens, extra in (((1, 2), b"x0-2"), ((3, 4), b"x2-4")):
        words = b"".join(token.to_bytes(4, "little") for token in tokens)
        expected.append(hashlib.blake2b(expected[-1] + words + extra, key=SECRET, digest_size=16).digest())
    assert chain.digests == expected[1:]


def test_a_chain_that_failed_in_the_middle_goes_on_where_it_stopped() -> None:
    is_broken = True

    def extra(start: int, _end: int) -> bytes:
        if is_broken and start == 4:
            raise LookupError("no such item")
        return b"%d" % start

    chain = DigestChain(SECRET, SEED, 2, extra)
    with pytest.raises(LookupError):
        chain.extend(range(8), 8)
    is_broken = False
    chain.extend(range(8), 8)
    whole = DigestChain(SECRET, SEED, 2, extra)
    whole.extend(range(8), 8)
    assert chain.digests == whole.digests
