"""What a preemption leaves behind is no reuse: neither an offer without blocks nor a request that lost its own.

Field report 23 (vllm-project/vllm#50297, #53250): preemption emptied the block list, or asked for a second remote load.
"""

from pathlib import Path

import pytest
from msgspec import structs

from connector.protocol import Decision, Role
from tests.connector.engine.builders import an_envelope
from tests.contract.scheduler_bench import AS_DECODE, SchedulerBench, offered_by

HISTORY = list(range(12))


@pytest.fixture
def prefill(tmp_path: Path) -> SchedulerBench:
    (tmp_path / "p").mkdir()
    return SchedulerBench(tmp_path / "p", is_prefill=True)


@pytest.fixture
def decode(tmp_path: Path) -> SchedulerBench:
    (tmp_path / "d").mkdir()
    return SchedulerBench(tmp_path / "d", is_prefill=False)


@pytest.mark.parametrize("is_prefill", [True, False])
def test_offer_without_blocks_is_no_reuse(prefill: SchedulerBench, decode: SchedulerBench, is_prefill: bool) -> None:
    bench, source = (prefill, decode) if is_prefill else (decode, prefill)
    empty = structs.replace(offered_by(source, HISTORY), block_ids=((),), digests=b"", num_tokens=0)
    envelope = an_envelope(leg=Role.PREFILL if is_prefill else Role.DECODE)
    request = bench.arrive([*HISTORY, 1, 2], envelope, empty, **({} if is_prefill else AS_DECODE))
    assert bench.allocate(request) == 0
    assert bench.decided().decision is Decision.PREFIX_DIVERGED
    assert not any(received.awaiting_kvs for received in bench.metadata().reqs_to_recv.values())


@pytest.mark.parametrize("is_prefill", [True, False])
@pytest.mark.parametrize("was_pulled", [True, False])
def test_preempted_request_is_never_parked_for_a_second_load(
    prefill: SchedulerBench, decode: SchedulerBench, is_prefill: bool, was_pulled: bool
) -> None:
    """vLLM frees its blocks and asks the connector anew, with all that it had computed gone."""
    bench, source = (prefill, decode) if is_prefill else (decode, prefill)
    held = HISTORY if was_pulled else [99, *HISTORY]
    envelope = an_envelope(leg=Role.PREFILL if is_prefill else Role.DECODE)
    given = {} if is_prefill else AS_DECODE
    request = bench.arrive(HISTORY if not is_prefill else [*HISTORY, 1, 2], envelope, offered_by(source, held), **given)
    assert (bench.allocate(request) > 0) is was_pulled
    bench.metadata()
    if was_pulled:
        bench.results(finished_recving={"req-1"})
    for _ in range(3):
        request.num_computed_tokens = 0
        assert bench.allocate(request) == 0
        assert bench.metadata().reqs_to_recv == {}
    is_kept, answer = bench.finish(request, [60, 61])
    assert is_kept
    assert (answer is not None) is is_prefill
