"""Runs of packed hashes: how far two of them agree."""

from connector.router.chain import PACKED_BYTES


def first_of(edge: bytes) -> bytes:
    return edge[:PACKED_BYTES]


def num_common_of(one: bytes, other: bytes, size: int = PACKED_BYTES) -> int:
    """Hashes of ``size`` bytes that both begin with, by bisection: equal prefixes end once."""
    low, high = 0, min(len(one), len(other)) // size
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * size] == other[: middle * size]:
            low = middle
        else:
            high = middle - 1
    return low


def follow(edge: bytes, chain: bytes, position: int) -> tuple[int, int]:
    """How many hashes of a run the prompt has from ``position`` on, and the position behind the last of them."""
    start = position * PACKED_BYTES
    length = num_common_of(edge, chain[start : start + len(edge)])
    position += length
    while length * PACKED_BYTES < len(edge):
        place = chain.find(edge[length * PACKED_BYTES : (length + 1) * PACKED_BYTES], position * PACKED_BYTES)
        if place < 0 or place % PACKED_BYTES:
            break
        length, position = length + 1, place // PACKED_BYTES + 1
    return length, position
