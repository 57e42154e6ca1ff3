"""Spans reach an OTLP endpoint that fails, is away, or refuses: late, in order, bounded and counted."""

import asyncio

import aiohttp
import msgspec
import pytest

from connector.agent.app import Agent
from connector.agent.environment import Secret
from connector.agent.export import ExportTiming, SpanExport, SpanQueue
from connector.agent.spans import SpanRecorder
from connector.protocol import Decision, EngineState, LeaseEnded, LegDecided, Role, TransferRecorded
from tests.connector.agent.conftest import FAST, RunAgent
from tests.connector.agent.fake_control_plane import AGENT_TOKEN, FakeControlPlane
from tests.connector.agent.fake_engine import FakeEngine
from tests.connector.agent.samples import PARENT_ID, SAMPLED, TRACE_ID, UNSAMPLED, transfer
from tests.connector.agent.waiting import until


def queue_with(*transfer_ids: str, max_spans: int = 1000) -> SpanQueue:
    queue = SpanQueue(max_spans)
    recorder = SpanRecorder("d0", "boot", queue)
    for transfer_id in transfer_ids:
        recorder.record_transfer(transfer(transfer_id))
    return queue


def exported_ids(control_plane: FakeControlPlane) -> list[str]:
    return [
        attribute.value.string_value
        for span in control_plane.spans
        for attribute in span.attributes
        if attribute.key == "backhaul.transfer_id"
    ]


async def test_transfer_of_the_engine_becomes_a_span_and_an_event_with_the_same_ids(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: engine.is_connected and agent.mirror.state is EngineState.READY)
    engine.happen(transfer("a"))
    await until(lambda: control_plane.spans and control_plane.stored)
    span, event = control_plane.spans[0], control_plane.events[0]
    assert isinstance(event, TransferRecorded)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert (event.trace_id, event.span_id) == (span.trace_id.hex(), span.span_id.hex())
    assert span.end_time_unix_nano - span.start_time_unix_nano == 25_000_000
    assert control_plane.span_authorizations == [f"Bearer {AGENT_TOKEN}"]


async def test_unsampled_transfer_is_an_event_without_a_span(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: engine.is_connected and agent.mirror.state is EngineState.READY)
    engine.happen(transfer("quiet", traceparent=UNSAMPLED))
    engine.happen(transfer("loud"))
    await until(lambda: control_plane.spans and len(control_plane.stored) == 2)
    assert exported_ids(control_plane) == ["loud"]


async def test_lease_span_is_linked_to_the_turn_that_the_engine_told_of(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: engine.is_connected and agent.mirror.state is EngineState.READY)
    engine.happen(
        LegDecided(
            turn_id="turn-1",
            session_id="session-1",
            leg=Role.DECODE,
            decision=Decision.PULLED,
            num_prompt_tokens=320,
            traceparent=SAMPLED,
        )
    )
    engine.grant("a", turn_id="turn-1")
    engine.end("a")
    await until(lambda: control_plane.spans)
    span = control_plane.spans[0]
    assert (span.name, span.parent_span_id) == ("kv.lease", b"")
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in span.links] == [(TRACE_ID, PARENT_ID)]
    await until(lambda: any(isinstance(event, LeaseEnded) for event in control_plane.events))


async def test_spans_made_while_the_control_plane_is_away_arrive_when_it_is_back(
    agent: Agent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await until(lambda: engine.is_connected and agent.mirror.state is EngineState.READY)
    await control_plane.stop()
    for number in range(600):
        engine.happen(transfer(f"t{number}"))
    await until(lambda: len(agent.span_queue) == 600 and agent.span_queue.num_failed_requests >= 2)
    await control_plane.start()
    await until(lambda: agent.span_queue.num_exported == 600)
    assert exported_ids(control_plane) == [f"t{number}" for number in range(600)]
    assert agent.span_queue.num_dropped == 0


@pytest.mark.parametrize("status", [503, 429, 500, 401, 403, 404, 302])
async def test_endpoint_that_fails_first_gets_every_span_once_in_order(
    status: int, control_plane: FakeControlPlane, session: aiohttp.ClientSession
) -> None:
    control_plane.span_statuses = [status, status]
    queue = queue_with("a", "b", "c")
    timing = ExportTiming(gather=0.0, first_retry=0.001, longest_retry=0.002)
    export = SpanExport(queue, f"{control_plane.url}/v1/traces", Secret(AGENT_TOKEN), timing)
    running = asyncio.create_task(export.run(session))
    await until(lambda: queue.num_exported == 3)
    running.cancel()
    assert exported_ids(control_plane) == ["a", "b", "c"]
    assert (queue.num_failed_requests, queue.num_dropped, len(queue)) == (2, 0, 0)


async def test_batch_that_the_receiver_will_never_take_is_dropped_and_counted(
    control_plane: FakeControlPlane, session: aiohttp.ClientSession
) -> None:
    control_plane.span_statuses = [400]
    queue = queue_with("a", "b")
    export = SpanExport(queue, f"{control_plane.url}/v1/traces", Secret(AGENT_TOKEN))
    assert await export.send_one_batch(session)
    assert (queue.num_dropped, queue.num_exported, len(queue)) == (2, 0, 0)


async def test_full_queue_drops_the_oldest_and_counts_them(
    control_plane: FakeControlPlane, session: aiohttp.ClientSession
) -> None:
    queue = queue_with("a", "b", "c", "d", max_spans=3)
    assert (len(queue), queue.num_dropped) == (3, 1)
    taken = queue.take(2)
    SpanRecorder("d0", "boot", queue).record_transfer(transfer("e"))
    SpanRecorder("d0", "boot", queue).record_transfer(transfer("f"))
    queue.put_back(taken)
    assert (len(queue), queue.num_dropped) == (3, 3)
    await SpanExport(queue, f"{control_plane.url}/v1/traces", Secret(AGENT_TOKEN)).flush(session)
    assert exported_ids(control_plane) == ["d", "e", "f"]


async def test_batch_that_was_under_way_when_the_exporter_was_stopped_is_kept(session: aiohttp.ClientSession) -> None:
    asked = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        asked.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    queue = queue_with("a", "b")
    running = asyncio.create_task(SpanExport(queue, f"http://127.0.0.1:{port}/", Secret("x")).run(session))
    await asked.wait()
    assert len(queue) == 0
    running.cancel()
    await asyncio.wait([running])
    assert len(queue) == 2
    server.close()
    await server.wait_closed()


async def test_agent_that_is_stopped_sends_its_last_spans(
    run_agent: RunAgent, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    slow = ExportTiming(gather=3600.0)
    async with run_agent(msgspec.structs.replace(FAST, export=slow)) as agent:
        await until(lambda: engine.is_connected and agent.mirror.state is EngineState.READY)
        engine.happen(transfer("last"))
        await until(lambda: len(agent.span_queue) == 1)
        assert control_plane.spans == []
    assert exported_ids(control_plane) == ["last"]
