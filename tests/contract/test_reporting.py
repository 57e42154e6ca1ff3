"""The engine as its agent sees it: our scheduler half on a real link, driven step by step."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm

from connector.engine import __version__
from connector.engine.metadata import WorkerReport
from connector.protocol import (
    PROTOCOL_VERSION,
    CommandDone,
    EngineEvent,
    EngineHello,
    ExtendLease,
    LeaseEnded,
    LeaseOffer,
    LeaseRenewed,
    LeaseState,
    LegDecided,
    Ping,
    PolicyApplied,
    PolicyValues,
    Pong,
    ReleaseLease,
    Role,
    SetPolicy,
)
from tests.connector.engine.builders import BLOCK_SIZE, an_envelope
from tests.connector.engine.link_client import LinkClient
from tests.contract.scheduler_bench import AS_DECODE, NUM_BLOCKS, SchedulerBench

HISTORY = list(range(12))
STEP = SimpleNamespace(total_num_scheduled_tokens=1, num_scheduled_tokens={"x": 1})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SchedulerBench]:
    made = SchedulerBench(tmp_path, is_prefill=False)
    del made.scheduler.reporter.send  # the real link is the ear here
    made.scheduler.bind_kv_cache_manager(made.cache)
    yield made
    made.scheduler.shutdown()


def in_the_inbox(agent: LinkClient) -> None:
    """The link's thread has done all that was asked of it before."""
    agent.send(Ping(nonce=5))
    agent.receive(Pong)


@pytest.fixture
def newcomer(bench: SchedulerBench) -> Iterator[LinkClient]:
    """An agent that has just connected."""
    with LinkClient(bench.options.link_path) as client:
        yield client


@pytest.fixture
def agent(newcomer: LinkClient) -> LinkClient:
    """An agent that was greeted before anything happened."""
    newcomer.receive(EngineHello)
    in_the_inbox(newcomer)
    return newcomer


def lease(bench: SchedulerBench) -> Any:
    """A finished turn, whose lease is held."""
    request = bench.arrive(HISTORY, an_envelope(leg=Role.DECODE), **AS_DECODE)
    bench.allocate(request)
    bench.finish(request)
    return next(iter(bench.scheduler.control.table))


def test_the_hello_says_which_engine_this_is(bench: SchedulerBench, newcomer: LinkClient) -> None:
    hello = newcomer.receive(EngineHello)
    engine = hello.engine
    assert (hello.protocol, hello.num_leases) == (PROTOCOL_VERSION, 0)
    assert (engine.name, engine.incarnation, engine.role) == ("d-0", "own-boot", Role.DECODE)
    assert (engine.model, engine.kv_dtype) == ("tiny", "auto")
    assert (engine.block_size, engine.num_blocks) == (BLOCK_SIZE, NUM_BLOCKS)
    assert engine.bytes_per_block == 2 * 2 * BLOCK_SIZE * 8 * 4  # layers, keys and values, tokens, head, float
    assert (engine.vllm_version, engine.connector_version) == (vllm.__version__, __version__)
    assert hello.policy.values == bench.options.policy


def test_a_turn_is_heard_as_decision_and_lease(bench: SchedulerBench, agent: LinkClient) -> None:
    held = lease(bench)
    event = agent.receive(EngineEvent)
    assert isinstance(event.event, LegDecided)
    assert agent.receive(LeaseOffer).lease.lease_id == held.lease_id


def test_held_leases_follow_the_hello_of_a_later_agent(bench: SchedulerBench) -> None:
    held = lease(bench)
    with LinkClient(bench.options.link_path) as later:
        assert later.receive(EngineHello).num_leases == 1
        assert later.receive(LeaseOffer).lease.lease_id == held.lease_id


def test_a_policy_holds_for_the_next_request_with_no_step_between(bench: SchedulerBench, agent: LinkClient) -> None:
    values = PolicyValues(decoder_kv_blocks_ttl=0)
    agent.send(SetPolicy(revision=9, values=values))
    applied = agent.receive(PolicyApplied)
    assert (applied.revision, applied.values) == (9, values)
    request = bench.arrive(HISTORY, an_envelope(leg=Role.DECODE), **AS_DECODE)
    bench.allocate(request)
    assert bench.finish(request) == (False, None)


def test_a_release_goes_from_the_agent_to_the_workers_and_back(bench: SchedulerBench, agent: LinkClient) -> None:
    held = lease(bench)
    agent.receive(EngineEvent)
    agent.receive(LeaseOffer)
    agent.send(ReleaseLease(command_id="c1", key=held.lease_id, reason="operator"))
    in_the_inbox(agent)
    assert bench.scheduler.build_connector_meta(STEP).orders.releases == ["req-1"]
    assert agent.receive(CommandDone) == CommandDone(command_id="c1", outcome="released")
    bench.results(finished_sending={"req-1"})
    ended = agent.receive(EngineEvent).event
    assert isinstance(ended, LeaseEnded)
    assert (ended.lease_id, ended.state, ended.reason) == (held.lease_id, LeaseState.RELEASED, "operator")


def test_an_extension_is_heard_before_its_command_is_done(bench: SchedulerBench, agent: LinkClient) -> None:
    held = lease(bench)
    agent.receive(EngineEvent)
    agent.receive(LeaseOffer)
    agent.send(ExtendLease(command_id="c1", lease_id=held.lease_id, ttl_seconds=900))
    in_the_inbox(agent)
    assert bench.scheduler.build_connector_meta(STEP).orders.deadlines == {"req-1": 900}
    assert agent.receive(LeaseRenewed).lease.remaining_seconds == pytest.approx(900, abs=5)
    assert agent.receive(CommandDone).outcome == "extended"


def test_an_idle_engine_still_answers_for_an_unknown_lease(bench: SchedulerBench, agent: LinkClient) -> None:
    agent.send(ReleaseLease(command_id="c1", key="gone"))
    assert agent.receive(CommandDone).outcome == "not_found"


def load(agent: LinkClient) -> Any:
    agent.send(Ping(nonce=1))
    return agent.receive(Pong).load


def test_the_load_counts_leases_blocks_and_requests(bench: SchedulerBench, agent: LinkClient) -> None:
    lease(bench)
    agent.receive(EngineEvent)
    agent.receive(LeaseOffer)
    waiting = bench.arrive_raw(HISTORY, None, "waiting")
    bench.scheduler.build_connector_meta(SimpleNamespace(total_num_scheduled_tokens=0, num_scheduled_tokens={}))
    first = load(agent)
    assert (first.num_leases, first.num_leased_blocks, first.num_blocks) == (1, 3, NUM_BLOCKS)
    assert (first.num_running, first.num_waiting, first.num_quarantined_blocks) == (0, 1, 0)
    bench.scheduler.build_connector_meta(
        SimpleNamespace(total_num_scheduled_tokens=1, num_scheduled_tokens={"waiting": 1})
    )
    assert (load(agent).num_running, load(agent).num_waiting) == (1, 0)
    bench.finish(waiting)
    bench.results(WorkerReport(expired=["req-1"]), finished_sending={"req-1"})
    agent.receive(EngineEvent)
    assert (load(agent).num_leases, load(agent).num_leased_blocks) == (0, 0)


def test_quarantined_blocks_are_part_of_the_load(bench: SchedulerBench, agent: LinkClient) -> None:
    request = bench.arrive_raw(HISTORY, None, "late")
    bench.allocate(request)
    bench.results(WorkerReport(quarantined=["late"]), failed_recving={"late"})
    assert load(agent).num_quarantined_blocks == 3


def test_shutting_down_closes_the_link(tmp_path: Path) -> None:
    bench = SchedulerBench(tmp_path, is_prefill=False)
    bench.scheduler.bind_kv_cache_manager(bench.cache)
    with LinkClient(bench.options.link_path) as client:
        client.receive(EngineHello)
        bench.scheduler.shutdown()
        assert client.read_to_end() == []
    assert not bench.options.link_path.exists()
