"""One lease: what goes into its record comes out again, and the policy that it lives under."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.engine.lease import Lease
from connector.protocol import LeaseKind, PolicyPatch, PolicyValues
from tests.connector.engine.builders import a_lease

IDS = st.integers(0, 2**32 - 1)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(
    st.lists(st.lists(IDS, max_size=5), min_size=1, max_size=3),
    st.lists(st.text(max_size=20), max_size=4),
    st.binary(max_size=64).map(lambda digests: digests[: len(digests) // 16 * 16]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 4095),
)
def test_what_goes_in_comes_out(
    block_ids: list[list[int]], chain: list[str], digests: bytes, generation: int, slot: int
) -> None:
    lease = a_lease("a", block_ids=(), chain=chain, digests=digests, tail_digest=b"t" * 16, fence=(slot, generation))
    lease = Lease(
        request_id="req",
        tenant="tenant",
        kind=LeaseKind.HANDOFF,
        lease_id="01938c5e-7a3b-7000-8000-0123456789ab",
        session_id="ab" * 16,
        turn_id="turn",
        digest_key_id="k1",
        chain=chain,
        block_ids=block_ids,
        digests=digests,
        tail_digest=b"t" * 16,
        num_tokens=77,
        fence=(slot, generation),
        granted_at=5.0,
        deadline=9.5,
    )
    assert (lease.request_id, lease.tenant, lease.kind) == ("req", "tenant", LeaseKind.HANDOFF)
    assert lease.lease_id == "01938c5e-7a3b-7000-8000-0123456789ab"
    assert lease.texts[1:3] == ("ab" * 16, "turn")
    assert (lease.digest_key_id, lease.chain) == ("k1", tuple(chain))
    assert lease.block_ids == tuple(map(tuple, block_ids))
    assert set(lease.blocks()) == {block for group in block_ids for block in group}
    assert (lease.digests, lease.tail_digest) == (digests, b"t" * 16)
    assert (lease.slot, lease.generation, lease.num_tokens) == (slot, generation, 77)
    assert (lease.renewed_at, lease.used_at, lease.deadline) == (5.0, 5.0, 9.5)


def test_what_changes_changes_alone() -> None:
    lease = a_lease("a", [1, 2])
    before = (lease.texts, lease.block_ids, lease.digests, lease.slot, lease.generation)
    lease.deadline, lease.used_at, lease.renewed_at = 1.0, 2.0, 3.0
    lease.num_reads, lease.num_unique, lease.pinned = 4, 5, True
    assert (lease.deadline, lease.used_at, lease.renewed_at) == (1.0, 2.0, 3.0)
    assert (lease.num_reads, lease.num_unique, lease.pinned, lease.is_handoff) == (4, 5, True, False)
    assert (lease.texts, lease.block_ids, lease.digests, lease.slot, lease.generation) == before


def test_a_block_in_two_groups_is_held_once() -> None:
    lease = a_lease("a", block_ids=(), digests=b"")
    assert len(lease.blocks()) == 0
    lease = Lease(
        request_id="r", tenant="t", kind=LeaseKind.SESSION, lease_id="l", session_id="s", turn_id="u",
        digest_key_id="k", chain=(), block_ids=[[1, 2], [2, 3]], digests=b"", tail_digest=b"t" * 16, num_tokens=6,
        fence=(0, 1), granted_at=0.0, deadline=1.0,
    )  # fmt: skip
    assert (sorted(lease.blocks()), lease.block_ids) == ([1, 2, 3], ((1, 2), (2, 3)))


def test_remaining_time_is_never_negative() -> None:
    assert a_lease("a", age_seconds=1000).remaining_seconds() == 0
    assert a_lease("b", deadline=time.perf_counter() + 60).remaining_seconds() == pytest.approx(60, abs=5)


# ---------------------------------------------------------------- the policy that it lives under


@pytest.mark.parametrize(
    ("own", "engine", "ttl"),
    [
        (None, {}, 480),
        (None, {"decoder_kv_blocks_ttl": 60}, 60),
        (None, {"bidirectional_kv_xfer": False}, 0),
        ({"decoder_kv_blocks_ttl": 30}, {"decoder_kv_blocks_ttl": 0}, 30),
        ({"decoder_kv_blocks_ttl": 0}, {}, 0),
        ({"decoder_kv_blocks_ttl": 30}, {"bidirectional_kv_xfer": False}, 0),
        ({"bidirectional_kv_xfer": True}, {"bidirectional_kv_xfer": False}, 480),
        ({"bidirectional_kv_xfer": False}, {}, 0),
        ({"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": 30}, {"bidirectional_kv_xfer": False}, 30),
    ],
)
def test_a_sessions_own_ttl_and_reuse_are_narrower_than_the_engines(
    own: dict[str, int] | None, engine: dict[str, int], ttl: int
) -> None:
    lease = a_lease("a", policy=PolicyPatch(**own) if own is not None else None)  # type: ignore[arg-type]
    assert lease.ttl_seconds(PolicyValues(**engine)) == ttl  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("own", "engine", "pinned", "is_freed"),
    [
        (None, False, False, False),
        (None, True, False, True),
        (True, False, False, True),
        (False, True, False, False),
        (None, True, True, False),
        (True, True, True, False),
    ],
)
def test_whether_a_read_frees_it(own: bool | None, engine: bool, pinned: bool, is_freed: bool) -> None:
    lease = a_lease("a", policy=PolicyPatch(release_on_read=own), pinned=pinned)
    assert lease.is_freed_by_read(PolicyValues(release_on_read=engine)) is is_freed


def test_a_newer_policy_of_the_session_replaces_the_older_whole() -> None:
    lease = a_lease("a", policy=PolicyPatch(decoder_kv_blocks_ttl=30, release_on_read=True))
    lease.take_policy(PolicyPatch(bidirectional_kv_xfer=False))
    assert (lease.has_own_ttl, lease.is_freed_by_read(PolicyValues())) == (False, False)
    assert lease.ttl_seconds(PolicyValues()) == 0
    lease.take_policy(None)
    assert lease.ttl_seconds(PolicyValues()) == 480
