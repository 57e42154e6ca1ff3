"""What a lease costs: bytes that both halves keep for it, and microseconds of the step that it rides on.

Run it: ``python -m tests.load.bench_leases`` in the engine's environment. ``tests/contract/test_lease_cost.py`` holds
the bytes to their bound. Bytes are tracemalloc's, over a full table of 4,096 leases granted, ordered and obeyed as in
an engine; the request ids are vLLM's own strings, which live as long as it holds the blocks, and are not counted.
"""

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from connector.engine.demand import BlockDemand
from connector.engine.digests import DIGEST_BYTES
from connector.engine.fence import FenceMemory
from connector.engine.fence_orders import FenceOrders
from connector.engine.lease import Lease
from connector.engine.lease_control import LeaseControl
from connector.engine.metadata import SchedulerOrders
from connector.engine.policy import LivePolicy
from connector.engine.slot_index import NUM_SLOTS
from connector.engine.worker_leases import WorkerLeases
from connector.identity import uuid7
from connector.protocol import LeaseKind, PolicyValues
from tests.connector.engine.builders import a_factory

BYTES_PER_LEASE, BYTES_PER_BLOCK = 512, 24
"""The operator's contract."""
TYPICAL_CHAIN = 8
"""Messages of a conversation; each adds one of the router's 12-byte hashes."""


class Cost(msgspec.Struct, frozen=True):
    """Bytes of one lease, and those that are there from the engine's start."""

    scheduler: float
    worker: float
    fixed: int

    @property
    def total(self) -> float:
        return self.scheduler + self.worker


class CostBench:
    """Both halves' bookkeeping of leases, with a reporter that keeps nothing."""

    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.num_free = num_gpu_blocks
        self.control = LeaseControl(a_factory(), LivePolicy(PolicyValues(pinned_kv_limit=1.0)), BlockDemand(16, 1))
        reporter: Any = SimpleNamespace(
            send=lambda _message: None, event=lambda _event: None, done=lambda *_: None, commands=lambda: ()
        )
        self.control.reporter = reporter
        self.control.bind(self)
        self.fence = FenceOrders()
        self.memory = FenceMemory()
        self.vllms_worker = SimpleNamespace(_reqs_to_send={}, _reqs_to_process=set())
        self.worker = WorkerLeases(self.vllms_worker, self.memory)

    def get_num_free_blocks(self) -> int:
        return self.num_free

    def grant(self, request_id: str, blocks: range, num_chain: int = TYPICAL_CHAIN) -> None:
        self.fence.raise_word(request_id)
        fence = self.fence.word_of(request_id)
        assert fence is not None
        now = time.perf_counter()
        lease = Lease(
            request_id=request_id,
            tenant="default",
            kind=LeaseKind.SESSION,
            lease_id=str(uuid7()),
            session_id=uuid7().hex,
            turn_id=str(uuid7()),
            digest_key_id="k1",
            chain=("#3", *(uuid7().hex[:24] for _ in range(num_chain))),
            block_ids=[blocks],
            digests=bytes(DIGEST_BYTES * len(blocks)),
            tail_digest=bytes(DIGEST_BYTES),
            num_tokens=16 * len(blocks),
            fence=fence,
            granted_at=now,
            deadline=now + 480,
        )
        self.control.grant(lease)
        self.fence.leased(request_id)

    def step(self) -> None:
        """Orders go out and are obeyed."""
        orders = SchedulerOrders(pull_deadline_seconds=5, lease_extension_seconds=20)
        self.fence.fill(orders)
        self.control.fill(orders)
        self.worker.obey(orders)

    def fill(self, num_blocks: int, num_leases: int = NUM_SLOTS, num_chain: int = TYPICAL_CHAIN) -> list[str]:
        """That many leases of so many blocks each; returns vLLM's own ids of their requests."""
        request_ids = [f"chatcmpl-{uuid7()}-{number:08x}" for number in range(num_leases)]
        for number, request_id in enumerate(request_ids):
            self.grant(request_id, range(number * num_blocks, (number + 1) * num_blocks), num_chain)
            self.step()
        return request_ids


def measure(num_blocks: int, num_chain: int = TYPICAL_CHAIN) -> Cost:
    """Of a full table of leases of so many blocks."""
    gc.collect()
    tracemalloc.start()
    try:
        before = _traced()
        bench = CostBench(NUM_SLOTS * num_blocks + 1)
        fixed = _traced() - before
        held = bench.fill(num_blocks, num_chain=num_chain)
        of_ids = sum(map(len, held)) + 49 * len(held) + held.__sizeof__()
        grown = _traced() - before - fixed - of_ids
        of_worker = _deep_size(bench.worker._kept) + _deep_size(bench.memory._slot_of_request)
        return Cost((grown - of_worker) / NUM_SLOTS, of_worker / NUM_SLOTS, fixed)
    finally:
        tracemalloc.stop()


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _deep_size(container: Any) -> int:
    """Without the request ids, which are vLLM's in either process."""
    values = container.values() if isinstance(container, dict) else ()
    size = int(container.__sizeof__())
    return size + sum(int(value.__sizeof__()) for value in values if value > 256)


def microseconds(action: Callable[[], object], num_times: int) -> float:
    """Of this thread's own time, whatever else runs on the machine."""
    start = time.thread_time()
    for _ in range(num_times):
        action()
    return (time.thread_time() - start) / num_times * 1e6


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def print_bytes() -> None:
    show("bytes of a lease     scheduler  worker   total   bound   fixed per engine")
    for num_blocks in (1, 8, 64, 256):
        cost = measure(num_blocks)
        bound = BYTES_PER_LEASE + BYTES_PER_BLOCK * num_blocks
        show(
            f"{num_blocks:>4} blocks          {cost.scheduler:9.0f} {cost.worker:7.0f} {cost.total:7.0f} {bound:7}"
            f" {cost.fixed / 1024:9.0f} KiB"
        )
    longer = measure(8, num_chain=2 * TYPICAL_CHAIN).total - measure(8).total
    show(f"each further hash of the router's chain: {longer / TYPICAL_CHAIN:.0f} bytes")


def print_times() -> None:
    num_blocks, num_new = 64, 20
    bench = CostBench(NUM_SLOTS * num_blocks + 1)
    bench.fill(num_blocks, NUM_SLOTS - num_new)
    idle: Any = SimpleNamespace(num_scheduled_tokens={}, total_num_scheduled_tokens=0)
    room, table, factory = bench.control.room, bench.control.table, a_factory()
    lease = table.at(17)
    assert lease is not None
    lease_id, turn_id = lease.lease_id, lease.turn_id
    new = iter(range(NUM_SLOTS - num_new, NUM_SLOTS))

    def grant() -> None:
        number = next(new)
        bench.grant(f"new-{number}", range(number * num_blocks, (number + 1) * num_blocks))

    def evict() -> None:
        room.keep_low_water(idle)

    def do_nothing() -> None:
        bench.control.pump()
        room.keep_low_water(idle)

    rows: list[tuple[str, Callable[[], object], int]] = [
        ("pump and low water, nothing to do", do_nothing, 20_000),
        ("find by lease id", lambda: table.find(lease_id), 5000),
        ("find by turn id", lambda: table.find(turn_id), 5000),
        ("sign its offer", lambda: factory.signed_offer(lease), 500),
        ("grant one, its offer signed", grant, num_new),
    ]
    show(f"microseconds of CPU with {len(table)} leases of {num_blocks} blocks held")
    for what, action, num_times in rows:
        show(f"  {what:<40}{microseconds(action, num_times):9.1f}")
    bench.num_free = 0
    show(f"  {'evict one under pressure, ranking all':<40}{microseconds(evict, 1):9.1f}")
    for _ in range(8):
        bench.num_free -= 100
        last = microseconds(evict, 1)
    show(f"  {'evict one more in the same second':<40}{last:9.1f}")


if __name__ == "__main__":
    print_bytes()
    print_times()
