"""A handoff is renewed while its reader waits in a queue, however short the operator made it.

Field report 21 (aws-samples/aws-do-eks#84): the lease was shorter than the queue, and answers used released blocks.
"""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_scheduler

from connector.protocol import Role
from tests.connector.engine.builders import an_envelope
from tests.contract.scheduler_bench import AS_DECODE, SchedulerBench, offered_by

PROMPT = list(range(12))


@pytest.mark.parametrize("duration", [1, 3, 30, 600])
def test_waiting_reader_renews_often_enough_for_the_policy_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, duration: int
) -> None:
    """vLLM's own interval follows the start-up constant of the reader: 5 s, for leases of 3 s and of an hour alike."""
    for name in ("p", "d"):
        (tmp_path / name).mkdir()
    prefill = SchedulerBench(tmp_path / "p", is_prefill=True)
    decode = SchedulerBench(tmp_path / "d", is_prefill=False)
    policy = structs.replace(decode.options.policy, kv_lease_duration=duration)
    decode.scheduler.live_policy.set(1, policy)
    extension_seconds = decode.orders().lease_extension_seconds
    decode.arrive(PROMPT, an_envelope(leg=Role.DECODE), offered_by(prefill, PROMPT), **AS_DECODE)
    clock = SimpleNamespace(now=1e6)
    monkeypatch.setattr(base_scheduler, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    sent_at: list[float] = []
    for _ in range(200):
        clock.now += duration / 50
        metadata: Any = decode.metadata()
        if metadata.heartbeat_by_engine:
            sent_at.append(clock.now)
    gaps = [later - earlier for earlier, later in pairwise(sent_at)]
    assert len(gaps) >= 15
    assert max(gaps) <= min(extension_seconds, duration) / 2
