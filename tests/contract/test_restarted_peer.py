"""A peer that restarts on its old address with a new engine id, through vLLM's own handshake over real sockets.

Old and new offers may come in any order: each pull of an old one ends by itself, and those of the new one, and of every
other peer, work.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_scheduler import NixlBaseConnectorScheduler
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlAgentMetadata, NixlHandshakePayload

from connector.engine.metadata import BackhaulMetadata, FenceTarget
from tests.contract.fake_nixl import NixlDisconnectError
from tests.contract.worker_bench import GENERATION, PEER, FakeTopology, WorkerBench

BUILD = "build-1"
DEADLINE_SECONDS = 20.0


def a_payload(engine_id: str) -> bytes:
    facts = NixlAgentMetadata(
        engine_id=engine_id,
        agent_metadata=b"",
        kv_caches_base_addr=[0],
        device_id=0,
        num_blocks=100,
        block_lens=[128],
        block_strides=[128],
        kv_cache_layout="LBHNC",
        block_size=32,
        ssm_sizes=(0, 0),
        attn_backend_name="CPU_ATTN",
        physical_blocks_per_logical_kv_block=1,
    )
    return msgspec.msgpack.encode(NixlHandshakePayload(BUILD, msgspec.msgpack.encode(facts)))


class Peer:
    """An engine's side channel: vLLM's own listener on one port, whatever process serves it."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, engine_id: str) -> None:
        ready, self._stop = threading.Event(), threading.Event()
        given = ({(0, 0): a_payload(engine_id)}, ready, self._stop, "127.0.0.1", self.port)
        self._thread = threading.Thread(target=NixlBaseConnectorScheduler._nixl_handshake_listener, args=given)
        self._thread.start()
        assert ready.wait(DEADLINE_SECONDS)

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(DEADLINE_SECONDS)
            assert not self._thread.is_alive()

    def restart(self, engine_id: str) -> None:
        self.stop()
        self.start(engine_id)


class Topology(FakeTopology):
    def handshake_target_ranks(self, _tp_size: int, _dcp_size: int) -> list[int]:
        return [0]

    def unregister_remote_engine(self, _engine_id: str) -> None:
        """vLLM's keeps what a handshake told it; this one knows all peers alike."""


class Reader:
    """Our worker, whose handshakes are real; ``add_remote_agent`` is the part of them that needs memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = WorkerBench(monkeypatch)
        self.worker: Any = self.bench.worker
        self.nixl: Any = self.bench.nixl
        self.removed: list[str] = []
        self.nixl.remove_remote_agent = self.removed.append
        self.nixl.release_dlist_handle = lambda _: None
        self.nixl.check_remote_metadata = lambda _: True
        self.worker.__dict__ |= {
            "_is_csa_linear": False,
            "_hb_handshake_notif_only": False,
            "device_id": 0,
            "pcp_size": 1,
            "compat_hash": BUILD,
            "enforce_compat_hash": True,
            "kv_caches_base_addr": {},
            "dst_region_mem_types": {},
            "transfer_topo": Topology(1),
            "add_remote_agent": self._add_remote_agent,
            "_handshake_initiation_executor": ThreadPoolExecutor(1),
        }
        self._num_reads = 0

    def _add_remote_agent(self, facts: Any, *_ranks: int) -> str:
        worker = self.worker
        for known in (
            worker.tp_mappings,
            worker.dst_num_blocks,
            worker.dst_region_group_ids,
            worker.dst_uses_region_group_mapping,
        ):
            known[facts.engine_id] = known[PEER] if PEER in known else self._first(known)
        worker.dst_xfer_side_handles[facts.engine_id] = {0: 20}
        return f"agent-of-{facts.engine_id}"

    def _first(self, known: dict[str, Any]) -> Any:
        return next(value for key, value in known.items() if key != "own-boot")

    def close(self) -> None:
        self.worker._handshake_initiation_executor.shutdown()

    def order(self, request_id: str, engine: str, port: int) -> None:
        """A step in which the scheduler orders a pull from the engine of an offer."""
        metadata = BackhaulMetadata()
        metadata.add_new_req_to_recv(
            request_id=request_id,
            local_block_ids=([1, 2, 3],),
            kv_transfer_params={
                "remote_engine_id": engine,
                "remote_request_id": f"src-of-{engine}",
                "remote_host": "127.0.0.1",
                "remote_port": port,
                "remote_block_ids": [[7, 8, 9]],
                "remote_num_tokens": 96,
                "remote_blocks_expiry_time": None,
                "tp_size": 1,
            },
            local_num_computed_blocks=(0,),
            awaiting_kvs=True,
        )
        self.bench.begin(metadata, fence_targets={request_id: FenceTarget(self.bench.addresses, GENERATION)})

    def until(self, is_true: Callable[[], bool]) -> None:
        """Steps on, in real time: the handshakes are."""
        waiting = threading.Event()
        for _ in range(int(DEADLINE_SECONDS / 0.01)):
            if is_true():
                return
            self.bench.begin()
            self._take(self.worker.get_transfer_results())
            waiting.wait(0.01)
        raise AssertionError("it did not happen in time")

    def _take(self, results: Any) -> None:
        """vLLM reports a failed one as finished too."""
        self.received |= results.finished_recving
        self.failed |= results.failed_recving

    def outcome(self, request_id: str, engine: str, port: int, *, is_gone: bool = False) -> str:
        """How the pull ends; READs from a process that is gone fail at every look, as NIXL's do."""
        self.received: set[str] = set()
        self.failed: set[str] = set()
        self.order(request_id, engine, port)
        num_fences = len(self.nixl.fences)
        self.until(lambda: len(self.nixl.reads) > self._num_reads or request_id in self.failed)
        if len(self.nixl.reads) > self._num_reads:
            self._num_reads = len(self.nixl.reads)
            self.nixl.reads[-1].state = NixlDisconnectError() if is_gone else "DONE"
            self.until(lambda: len(self.nixl.fences) > num_fences or request_id in self.failed)
            if not is_gone:
                self.nixl.answer_fence(-1, GENERATION)
        self.until(lambda: request_id in self.received | self.failed)
        return "failed" if request_id in self.failed else "received"

    def reasons(self) -> list[tuple[str, str]]:
        return [(transfer.outcome, transfer.reason) for transfer in self.bench.report().transfers]


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.stop()


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    made = Reader(monkeypatch)
    yield made
    made.close()


def test_the_new_process_is_read_and_the_old_ones_state_is_released(reader: Reader, peer: Peer) -> None:
    peer.start("old")
    assert reader.outcome("r1", "old", peer.port) == "received"
    peer.restart("new")
    assert reader.outcome("r2", "new", peer.port) == "received"
    assert "old" not in reader.worker._remote_agents
    assert reader.removed == ["agent-of-old"]


def test_an_old_offer_fails_by_itself_and_the_next_pull_works(reader: Reader, peer: Peer) -> None:
    """P knew the old process: its READ meets a peer that is gone."""
    peer.start("old")
    reader.outcome("r1", "old", peer.port)
    peer.restart("new")
    assert reader.outcome("r2", "old", peer.port, is_gone=True) == "failed"
    assert reader.outcome("r3", "new", peer.port) == "received"
    assert [outcome for outcome, _ in reader.reasons()] == ["completed", "failed", "completed"]


@pytest.mark.parametrize("num_old_offers", [1, 3])
def test_an_old_offer_after_the_new_one_meets_the_wrong_process_and_poisons_nothing(
    reader: Reader, peer: Peer, num_old_offers: int
) -> None:
    """The handshake asks the address and gets the new id: the pull fails, and the new process stays known."""
    peer.start("old")
    reader.outcome("r1", "old", peer.port)
    peer.restart("new")
    reader.outcome("r2", "new", peer.port)
    for number in range(num_old_offers):
        assert reader.outcome(f"late-{number}", "old", peer.port) == "failed"
        assert reader.outcome(f"next-{number}", "new", peer.port) == "received"
    assert reader.reasons().count(("failed", "handshake_failed")) == num_old_offers
    assert "old" not in reader.worker._remote_agents


def test_a_process_that_was_never_met_is_not_known_by_its_old_offers(reader: Reader, peer: Peer) -> None:
    peer.start("new")
    assert reader.outcome("r1", "old", peer.port) == "failed"
    assert reader.outcome("r2", "new", peer.port) == "received"
    assert reader.reasons() == [("failed", "handshake_failed"), ("completed", "")]


def test_other_peers_are_read_all_along(reader: Reader, peer: Peer) -> None:
    bystander = Peer()
    bystander.start("other")
    try:
        assert reader.outcome("o1", "other", bystander.port) == "received"
        peer.start("old")
        reader.outcome("r1", "old", peer.port)
        peer.restart("new")
        assert reader.outcome("r2", "old", peer.port, is_gone=True) == "failed"
        assert reader.outcome("o2", "other", bystander.port) == "received"
        assert reader.outcome("r3", "new", peer.port) == "received"
        assert reader.outcome("r4", "old", peer.port) == "failed"
        assert reader.outcome("o3", "other", bystander.port) == "received"
    finally:
        bystander.stop()


def test_old_and_new_offers_under_way_at_once_end_each_for_itself(reader: Reader, peer: Peer) -> None:
    peer.start("new")
    reader.received, reader.failed = set(), set()
    reader.order("late", "old", peer.port)
    reader.order("now", "new", peer.port)
    reader.until(lambda: len(reader.nixl.reads) == 1 and "late" in reader.failed)
    reader.nixl.reads[0].state = "DONE"
    reader.until(lambda: len(reader.nixl.fences) == 1)
    reader.nixl.answer_fence(0, GENERATION)
    reader.until(lambda: "now" in reader.received)
    assert reader.failed == {"late"}
