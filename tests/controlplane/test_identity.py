"""UUIDv7 as cursor pages need it."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from controlplane import identity


def test_ids_are_version_7_and_dated_now() -> None:
    made = identity.uuid7()
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert abs((made.int >> 80) - time.time() * 1000) < 5000


def test_ids_increase_and_never_repeat_even_across_threads() -> None:
    ids = [identity.uuid7() for _ in range(10_000)]
    assert ids == sorted(ids)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: identity.uuid7(), range(10_000)))
    assert len(set(made)) == len(made)


def test_clock_that_steps_back_does_not_take_ids_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity.uuid7()
    monkeypatch.setattr("time.time_ns", lambda: 1)
    assert identity.uuid7() > before
