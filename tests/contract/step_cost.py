"""What our connector adds to a step and to a match, in microseconds; run in the engines' environment.

``python -m tests.contract.step_cost`` prints one JSON object a line. Both halves are our real classes on vLLM's own,
each compared with vLLM's own alone in alternating batches; figures are medians of the batches, in CPU time, so that
others on the machine don't count.
"""

import json
import pickle
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.v1.outputs import KVConnectorOutput

from connector.engine.base_classes import VllmScheduler, VllmWorker
from connector.engine.digests import DigestChain, num_common_blocks, pack
from connector.engine.metadata import BackhaulMetadata
from connector.engine.slot_index import NUM_SLOTS
from tests.connector.engine.builders import a_lease
from tests.contract import scheduler_bench
from tests.contract.fake_nixl import FakeNixl
from tests.contract.scheduler_bench import SchedulerBench
from tests.contract.worker_bench import WorkerBench, state_of_vllms_worker
from tests.load.bench_leases import measure

NUM_TOKENS = 24_000
BLOCK_SIZES = (16, 32, 128)
BATCHES, STEPS_PER_BATCH = 40, 200
IDLE = SimpleNamespace(
    total_num_scheduled_tokens=0, num_scheduled_tokens={}, scheduled_new_reqs=(), finished_req_ids=set()
)


def median_microseconds(actions: Sequence[Callable[[], object]], *, batches: int, times: int) -> list[float]:
    """Of each action, all of them taking turns, so that a disturbed moment disturbs all."""
    taken: list[list[float]] = [[] for _ in actions]
    for _ in range(batches):
        for action, seconds in zip(actions, taken, strict=True):
            start = time.thread_time()
            for _ in range(times):
                action()
            seconds.append((time.thread_time() - start) / times)
    return [statistics.median(seconds) * 1e6 for seconds in taken]


class Idle:
    """One engine's two halves in a step that has nothing to do, the metadata's way between the processes included."""

    def __init__(self, scheduler: Any, worker: Any, metadata: type) -> None:
        self._scheduler, self._worker, self._metadata = scheduler, worker, metadata
        self._report = getattr(worker, "take_report", lambda: None)

    def step(self) -> None:
        metadata = self._scheduler.build_connector_meta(IDLE)
        assert type(metadata) is self._metadata
        self._worker.start_load_kv(pickle.loads(pickle.dumps(metadata)))  # noqa: S301 - our own
        self._worker.get_transfer_results()
        self._scheduler.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=self._report()))


def our_halves(folder: Path, num_leases: int) -> Idle:
    bench = SchedulerBench(folder, is_prefill=False)
    for number in range(num_leases):
        bench.scheduler.control.table.add(a_lease(str(number), [number % scheduler_bench.NUM_BLOCKS]))
    patches = pytest.MonkeyPatch()
    worker = WorkerBench(patches).worker
    patches.undo()  # its real clock again
    worker.nixl_wrapper._agent.calls = Forgetful()
    worker._reqs_to_send.update(held(num_leases))
    return Idle(bench.scheduler, worker, BackhaulMetadata)


def held(num_leases: int) -> dict[str, float]:
    """vLLM's deadlines of these leases, in either worker."""
    return {f"req-{number}": time.perf_counter() + 3600 for number in range(num_leases)}


def vllms_halves(num_leases: int) -> Idle:
    config, cache = scheduler_bench.a_config(), scheduler_bench.a_cache_config()
    nixl = FakeNixl()
    nixl.calls = Forgetful()
    worker = VllmWorker.__new__(VllmWorker)
    worker.__dict__.update(state_of_vllms_worker(nixl, 1))
    worker._reqs_to_send.update(held(num_leases))
    return Idle(VllmScheduler(config, "own-boot", cache), worker, NixlConnectorMetadata)


class Forgetful(list[str]):
    """Keeps no calls: a bench makes a great many."""

    def append(self, _call: str) -> None:
        return


def idle_step(num_leases: int) -> float:
    """Microseconds of ours alone, both processes together, while so many leases are held."""
    with tempfile.TemporaryDirectory() as folder:
        actions = [our_halves(Path(folder), num_leases).step, vllms_halves(num_leases).step]
        ours, vllms = median_microseconds(actions, batches=BATCHES, times=STEPS_PER_BATCH)
    return ours - vllms


def digests(block_size: int) -> tuple[float, float]:
    """Milliseconds for all digests of a prompt, and microseconds to find where a peer's half-equal ones end."""
    source = random.Random(1)
    tokens = [source.randrange(150_000) for _ in range(NUM_TOKENS)]
    chains: list[DigestChain] = []

    def digest(tokens: list[int]) -> DigestChain:
        chain = DigestChain(bytes(32), b"seed", block_size)
        chain.extend(tokens, NUM_TOKENS)
        return chain

    (taken,) = median_microseconds([lambda: chains.append(digest(tokens))], batches=BATCHES, times=1)
    theirs = pack(digest([*tokens[: NUM_TOKENS // 2], *(token + 1 for token in tokens[NUM_TOKENS // 2 :])]).digests)
    mine = chains[-1].digests
    assert num_common_blocks(mine, theirs) == NUM_TOKENS // 2 // block_size
    (found,) = median_microseconds([lambda: num_common_blocks(mine, theirs)], batches=BATCHES, times=50)
    return taken / 1e3, found


def main() -> None:
    def say(**figure: Any) -> None:
        sys.stdout.write(json.dumps(figure) + "\n")
        sys.stdout.flush()

    say(name="a step with nothing to do, ours", value=idle_step(0), unit="us", limit=20)
    say(name=f"  the same with {NUM_SLOTS} leases held", value=idle_step(NUM_SLOTS), unit="us", limit=20)
    for block_size in BLOCK_SIZES:
        taken, found = digests(block_size)
        say(name=f"digests of 24k tokens, blocks of {block_size}", value=taken, unit="ms", limit=2)
        say(name=f"  finding the common prefix, blocks of {block_size}", value=found, unit="us", limit=None)
    for num_blocks in (1, 64):
        cost = measure(num_blocks).total
        say(name=f"memory of a lease of {num_blocks} blocks", value=cost, unit="B", limit=512 + 24 * num_blocks)


if __name__ == "__main__":
    main()
