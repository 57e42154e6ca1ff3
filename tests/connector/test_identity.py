"""UUIDv7: time-ordered, unique, and well-formed, as cursor pages and indexes need it."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from connector.identity import uuid7, uuid7_text


def test_version_and_variant_are_those_of_rfc_9562() -> None:
    for made in (uuid7() for _ in range(200)):
        assert made.version == 7
        assert made.variant == uuid.RFC_4122


def test_the_first_48_bits_are_unix_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    stamp = uuid7().int >> 80
    assert before <= stamp <= time.time_ns() // 1_000_000


def test_ids_increase_and_never_repeat_even_across_threads() -> None:
    ids = [uuid7() for _ in range(10_000)]
    assert ids == sorted(ids)
    assert [str(one) for one in ids] == sorted(str(one) for one in ids)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: uuid7(), range(10_000)))
    assert len(set(made)) == len(made)


def test_a_clock_that_steps_back_or_stands_still_does_not_take_ids_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = uuid7()
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    made = [uuid7() for _ in range(2000)]
    assert [before, *made] == sorted({before, *made})


def test_the_random_bits_are_all_used() -> None:
    """62 of the 64 low bits vary; the other two are the variant."""
    ones, zeros = 0, (1 << 64) - 1
    for _ in range(300):
        low = uuid7().int & ((1 << 64) - 1)
        ones, zeros = ones | low, zeros & low
    assert (ones ^ zeros).bit_count() == 62


def test_text_without_an_object_is_that_of_the_same_kind_of_id() -> None:
    before, texts, after = uuid7(), [uuid7_text() for _ in range(2000)], uuid7()
    assert [str(before), *texts, str(after)] == sorted({str(before), *texts, str(after)})
    for text in texts:
        made = uuid.UUID(text)
        assert str(made) == text
        assert (made.version, made.variant) == (7, uuid.RFC_4122)
    union = 0
    for text in texts:
        union |= uuid.UUID(text).int & (1 << 62) - 1
    assert union == (1 << 62) - 1
