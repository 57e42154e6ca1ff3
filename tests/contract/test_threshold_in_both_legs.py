"""The recompute threshold at its boundaries, through vLLM's own scheduler half, in both legs.

Field report 7 (vllm-project/vllm#55801): the threshold was applied to one direction only. Documented here: it governs
D→P. P→D has none, because P computed the prompt for this very request; and whoever pulls nothing on the decode leg
still tells P to free its blocks. D's lease on the other hand is kept after a skipped pull, whatever ``release_on_read``
says: it ends when the turn's own lease supersedes it, or with its TTL.
"""

from pathlib import Path

import pytest

from connector.protocol import Decision, LeaseOffer, LeaseState, Role
from tests.connector.engine.builders import an_envelope
from tests.contract.scheduler_bench import AS_DECODE, SchedulerBench, offered_by

HISTORY = [index % 97 for index in range(128)]
NEW = [98] * 5


def an_engine(folder: Path, *, is_prefill: bool, **policy: object) -> SchedulerBench:
    """With room for these histories."""
    folder.mkdir()
    bench = SchedulerBench(folder, is_prefill=is_prefill, **policy)
    bench.cache.num_gpu_blocks = 200
    bench.scheduler.control.bind(bench.cache)
    return bench


@pytest.fixture
def decode(tmp_path: Path) -> SchedulerBench:
    return an_engine(tmp_path / "d", is_prefill=False)


def prefill(tmp_path: Path, threshold: int, *, release_on_read: bool = False) -> SchedulerBench:
    policy = {"kv_recompute_threshold": threshold, "release_on_read": release_on_read}
    return an_engine(tmp_path / "p", is_prefill=True, **policy)


CASES = [
    (64, 0, Decision.LOCAL_PREFIX_HIT),
    (64, 1, Decision.BELOW_THRESHOLD),
    (64, 63, Decision.BELOW_THRESHOLD),
    (64, 64, Decision.PULLED),
    (64, 65, Decision.PULLED),
    (0, 0, Decision.LOCAL_PREFIX_HIT),
    (0, 1, Decision.PULLED),
    (0, 63, Decision.PULLED),
    (0, 64, Decision.PULLED),
]


@pytest.mark.parametrize("release_on_read", [False, True])
@pytest.mark.parametrize(("threshold", "missing", "decision"), CASES)
def test_prefill_leg_pulls_from_the_threshold_on(
    tmp_path: Path,
    decode: SchedulerBench,
    threshold: int,
    missing: int,
    decision: Decision,
    release_on_read: bool,
) -> None:
    bench = prefill(tmp_path, threshold, release_on_read=release_on_read)
    request = bench.arrive([*HISTORY, *NEW], an_envelope(), offered_by(decode, HISTORY))
    pulled = missing if decision is Decision.PULLED else 0
    assert bench.allocate(request, num_local_tokens=128 - missing) == pulled
    metadata = bench.metadata()
    assert ("req-1" in metadata.reqs_to_recv) is (pulled > 0), "D hears of a read, and of nothing else"
    if not pulled:
        assert bench.decided().decision is decision
        assert bench.decided().num_local_tokens == 128 - missing


@pytest.mark.parametrize("missing", [0, 1, 63, 64, 65])
@pytest.mark.parametrize("threshold", [0, 64, 100_000])
def test_decode_leg_pulls_whatever_the_threshold_and_always_lets_prefill_free(
    tmp_path: Path, decode: SchedulerBench, threshold: int, missing: int
) -> None:
    policy = decode.scheduler.live_policy
    decode.scheduler.live_policy.set(1, type(policy.values)(kv_recompute_threshold=threshold))
    offer = offered_by(prefill(tmp_path, threshold), HISTORY)
    request = decode.arrive(HISTORY, an_envelope(leg=Role.DECODE), offer, **AS_DECODE)
    assert decode.allocate(request, num_local_tokens=128 - missing) == missing
    received = decode.metadata().reqs_to_recv["req-1"]
    assert received.awaiting_kvs is (missing > 0)
    assert received.remote.request_id == offer.request_id, "vLLM notifies P of the read, or that there is none"
    if not missing:
        assert received.local_block_ids == ()
        assert decode.decided().decision is Decision.LOCAL_PREFIX_HIT


def test_lease_that_was_not_read_ends_with_the_next_turns_grant(tmp_path: Path, decode: SchedulerBench) -> None:
    """The source of a skipped pull isn't held to its TTL: the turn that skipped it is granted a lease of its own."""
    offer = offered_by(decode, HISTORY)
    bench = prefill(tmp_path, 100_000)
    bench.allocate(bench.arrive([*HISTORY, *NEW], an_envelope(), offer))
    assert bench.decided().decision is Decision.BELOW_THRESHOLD
    params = an_envelope(leg=Role.DECODE, session_id="of-d-0", turn_id="turn-2")
    decode.orders()
    again = decode.arrive([*HISTORY, *NEW], params, **AS_DECODE)
    again.request_id = "req-2"
    decode.scheduler.legs["req-2"] = decode.scheduler.legs.pop("req-1")
    decode.allocate(again)
    assert decode.finish(again)[0]
    assert len(decode.messages(LeaseOffer)) == 2
    assert decode.orders().releases == ["req-1"]
    (old,) = [lease for lease in decode.scheduler.control.table if not lease.is_live]
    assert old.ending == (LeaseState.SUPERSEDED, "superseded")
