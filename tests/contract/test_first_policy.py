"""An engine that starts gets policy and peers before its first request, or says that it waited; it follows its key."""

import logging
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from connector.engine import link
from connector.engine.kv_layout import KvLayout
from connector.engine.metadata import FencedHandshakePayload
from connector.protocol import EngineHello, Peer, PolicyValues, SetPeers, SetPolicy
from tests.connector.engine.link_client import LinkClient
from tests.contract.scheduler_bench import SchedulerBench

DEADLINE_SECONDS = 20.0


def starting(folder: Path, wait_seconds: float) -> SchedulerBench:
    bench = SchedulerBench(folder, is_prefill=True)
    reporter: Any = bench.scheduler.reporter
    reporter._options = msgspec.structs.replace(bench.options, policy_wait_seconds=wait_seconds)
    return bench


def an_agent_that_answers(path: Path, *messages: msgspec.Struct) -> threading.Thread:
    """Connects as soon as the link is there."""

    def run() -> None:
        while True:
            try:
                client = LinkClient(path)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                threading.Event().wait(0.01)
        with client:
            client.receive(EngineHello)
            for message in messages:
                client.send(message)
            client.wait_until_closed()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_the_agents_policy_and_peers_hold_when_the_start_goes_on(tmp_path: Path) -> None:
    bench = starting(tmp_path, DEADLINE_SECONDS)
    values = PolicyValues(kv_recompute_threshold=77)
    agent = an_agent_that_answers(
        bench.options.link_path, SetPeers(peers=(Peer(name="d-0"),)), SetPolicy(revision=5, values=values)
    )
    bench.scheduler.bind_kv_cache_manager(bench.cache)
    assert (bench.scheduler.live_policy.revision, bench.scheduler.live_policy.values) == (5, values)
    assert bench.scheduler.peers.reason_against("d-9", "") == "unknown_engine"
    bench.scheduler.shutdown()
    agent.join(DEADLINE_SECONDS)
    assert not agent.is_alive()


def test_without_an_agent_it_starts_with_its_own_constants_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = starting(tmp_path, 0.05)
    with caplog.at_level(logging.WARNING, logger="vllm.backhaul.reporting"):
        bench.scheduler.bind_kv_cache_manager(bench.cache)
    assert bench.scheduler.live_policy.revision == 0
    assert "No agent set a policy within 0.05 s (backhaul_policy_wait_seconds)" in caplog.text
    bench.scheduler.shutdown()


def test_a_new_key_is_taken_and_lapses_without_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "TICK_SECONDS", 0.01)
    bench = starting(tmp_path, 0.0)
    bench.scheduler.bind_kv_cache_manager(bench.cache)
    for lines in (("k2", "k1"), ("k2",)):
        text = "".join(f"{key_id} {number:064x}\n" for number, key_id in enumerate(lines))
        bench.options.fleet_key_file.write_text(text)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while bench.scheduler.fleet_key.current.key_ids != lines:
            assert time.monotonic() < deadline, "the link's thread has not read the file"
            threading.Event().wait(0.01)
    bench.scheduler.shutdown()


def test_the_layout_that_vllms_handshake_compares_is_offered_and_compared(tmp_path: Path) -> None:
    bench = SchedulerBench(tmp_path, is_prefill=True)
    facts = msgspec.msgpack.encode({"kv_cache_layout": "LBNHC", "block_lens": [256, 256], "engine_id": "x"})
    bench.scheduler._note_layout({(0, 0): FencedHandshakePayload("hash", facts, 0x9000)})
    expected = KvLayout("hash", "LBNHC", 512)
    assert (bench.scheduler.factory.layout, bench.scheduler.matcher.reader.layout) == (expected, expected)


def test_a_handshake_payload_that_cannot_be_read_is_not_compared(tmp_path: Path) -> None:
    bench = SchedulerBench(tmp_path, is_prefill=True)
    bench.scheduler._note_layout({(0, 0): FencedHandshakePayload("hash", b"\xc1", 0x9000)})
    assert bench.scheduler.matcher.reader.layout == KvLayout()
