"""Which prompts rewrite a history and which only branch from it: pure functions and their properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.router.rewriting import MAX_PARTS, PART_BYTES, has_rewritten, num_common_parts, pack_parts


def history(names: str) -> bytes:
    """One part per word."""
    return pack_parts(name.encode().ljust(12, b".") for name in names.split())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("S u1 a1 u2 a2 u3", "S u2 a2 u3 a3 u4"),
        ("S u1 a1 u2 a2 u3", "S u3 a3 u4"),
        ("S@1 u1 a1 u2", "S@2 u1 a1 u2 a2 u3"),
        ("S u1 a1 u2", "S note u1 a1 u2 a2 u3"),
        ("S u1 a1 u2 a2 u3", "S u1 a1 u2x a2 u3 a3 u4"),
        ("S u1 call r1 r2", "S u1 call r2 r1 a1 u2"),
    ],
    ids=["oldest dropped", "one message kept", "date line", "inserted", "edited", "results reordered"],
)
def test_rewritten_histories(old: str, new: str) -> None:
    """Field reports 57 and 59. One message alone proves nothing: two of these stay undecided, and held to their TTL."""
    undecided = {"S u3 a3 u4", "S u1 call r2 r1 a1 u2"}
    assert has_rewritten(history(old), history(new)) is (new not in undecided)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("S u1 a1 u2", "S u1 a1 u2 a2 u3"),
        ("S u1 a1 u2", "S u1 a1 u2"),
        ("S u1 a1 u2 a2 u3", "S u1 a1 u2"),
        ("S u1 a1 u2 a2 u3b", "S u1 a1 u2 a2 u3 a3 u4"),
        ("S task-a go a1 continue", "S task-b go b1 continue b2 continue"),
        ("S u1 a1 u2 a2 u3", "S summary u4"),
        ("S u1 a1 u2 a2 u3", "S u1x a1 u2 a2 u3"),
        ("", "S u1"),
        ("S u1", ""),
    ],
    ids=[
        "appended",
        "retried",
        "shorter",
        "branch",
        "sub-agent",
        "summary",
        "edited without going on",
        "empty",
        "none",
    ],
)
def test_branches_and_continuations_are_no_rewrites(old: str, new: str) -> None:
    assert not has_rewritten(history(old), history(new))


PARTS = st.lists(st.binary(min_size=12, max_size=12), unique=True, max_size=12)


@given(shared=PARTS, old=PARTS, new=PARTS)
def test_common_parts_are_counted_as_one_by_one(shared: list[bytes], old: list[bytes], new: list[bytes]) -> None:
    one, other = shared + old, shared + new
    expected = 0
    while expected < min(len(one), len(other)) and one[expected][:PART_BYTES] == other[expected][:PART_BYTES]:
        expected += 1
    assert num_common_parts(pack_parts(one), pack_parts(other)) == expected


@given(shared=PARTS, old=PARTS, more=PARTS)
def test_nothing_that_goes_on_from_a_history_rewrites_it(
    shared: list[bytes], old: list[bytes], more: list[bytes]
) -> None:
    assert not has_rewritten(pack_parts(shared + old), pack_parts(shared + old + more))


def test_long_histories_are_bounded() -> None:
    assert len(pack_parts([b"x" * 12] * 5000)) == MAX_PARTS * PART_BYTES
