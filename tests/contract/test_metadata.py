"""What the two halves tell each other, and what a peer of vLLM's own makes of our handshake."""

import pickle

import msgspec
import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata, NixlHandshakePayload

from connector.engine.metadata import (
    BackhaulMetadata,
    FencedHandshakePayload,
    FenceTarget,
    RankTransfer,
    SchedulerOrders,
    WorkerReport,
)

TRANSFER = RankTransfer("r", "completed", "", 1, 2, 0.1, 3.0, 4.0)


def test_reports_of_ranks_are_joined() -> None:
    first = WorkerReport([TRANSFER], ["a"], ["b"], ["c"], ["d"])
    second = WorkerReport([TRANSFER], ["a"], [], ["e"], [])
    joined = first.aggregate(second)
    assert (joined.transfers, joined.quarantined) == ([TRANSFER, TRANSFER], ["a", "a"])
    assert (joined.ended, joined.expired, joined.reads) == (["b"], ["c", "e"], ["d"])
    assert (first.transfers, second.transfers) == ([TRANSFER], [TRANSFER])


@pytest.mark.parametrize(
    "report",
    [
        WorkerReport(transfers=[TRANSFER]),
        WorkerReport(quarantined=["a"]),
        WorkerReport(ended=["a"]),
        WorkerReport(expired=["a"]),
        WorkerReport(reads=["a"]),
    ],
)
def test_a_report_with_anything_to_say_is_not_empty(report: WorkerReport) -> None:
    assert not report.is_empty()
    assert WorkerReport().is_empty()


def test_orders_and_reports_survive_the_way_between_processes() -> None:
    metadata = BackhaulMetadata()
    metadata.reqs_to_send = {"r": 5.0}
    metadata.orders = SchedulerOrders(
        pull_deadline_seconds=5,
        lease_extension_seconds=20,
        fence_words={"r": (1, 2**63)},
        fence_targets={"r": FenceTarget({0: 2**47}, 2**63 + 1)},
    )
    arrived = pickle.loads(pickle.dumps(metadata))  # noqa: S301  # as vLLM's own executor sends it
    assert isinstance(arrived, NixlConnectorMetadata)
    assert (arrived.orders, arrived.reqs_to_send) == (metadata.orders, {"r": 5.0})
    report = WorkerReport(transfers=[TRANSFER])
    assert pickle.loads(pickle.dumps(report)) == report  # noqa: S301


def test_a_stock_peer_reads_our_handshake_without_the_extra_field() -> None:
    sent = msgspec.msgpack.encode(FencedHandshakePayload("hash", b"agent", 0x7000))
    read = msgspec.msgpack.Decoder(NixlHandshakePayload).decode(sent)
    assert (read.compatibility_hash, read.agent_metadata_bytes) == ("hash", b"agent")


@pytest.mark.parametrize(
    "orders",
    [
        SchedulerOrders(5.0, 20),
        SchedulerOrders(2.5, 7, releases=["r"]),
        SchedulerOrders(
            0.5,
            1,
            fence_words={"a": (1, 2)},
            dropped_words=["b"],
            fence_targets={"c": FenceTarget({0: 16}, 3)},
            pull_deadlines={"d": 1.5},
            kept_requests=["e"],
            unkept_requests=["f"],
            deadlines={"g": 9.0},
            releases=["h"],
        ),
    ],
)
def test_orders_arrive_as_they_were_given(orders: SchedulerOrders) -> None:
    arrived = pickle.loads(pickle.dumps(orders))  # noqa: S301 - as vLLM does between its processes
    assert arrived == orders
    arrived.releases.append("own")
    assert "own" not in pickle.loads(pickle.dumps(SchedulerOrders(5.0, 20))).releases  # noqa: S301
