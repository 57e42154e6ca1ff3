"""UUIDv7: time-ordered, unique, and well-formed."""

import time
import uuid

import pytest

from connector.identity import uuid7


def test_version_and_variant_are_those_of_rfc_9562() -> None:
    for made in (uuid7() for _ in range(200)):
        assert made.version == 7
        assert made.variant == uuid.RFC_4122


def test_the_first_48_bits_are_unix_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    stamp = uuid7().int >> 80
    assert before <= stamp <= time.time_ns() // 1_000_000


def test_ids_of_one_millisecond_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    assert len({uuid7() for _ in range(2000)}) == 2000


def test_later_ids_sort_after_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**18, 10**18 + 50 * 10**6, 10**6))
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))
    made = [uuid7() for _ in range(50)]
    assert made == sorted(made)
    assert [str(one) for one in made] == sorted(str(one) for one in made)


def test_the_random_bits_are_all_used() -> None:
    """74 of the 80 low bits vary; the other six are version and variant."""
    ones, zeros = 0, (1 << 80) - 1
    for _ in range(300):
        low = uuid7().int & ((1 << 80) - 1)
        ones, zeros = ones | low, zeros & low
    assert (ones ^ zeros).bit_count() == 74
