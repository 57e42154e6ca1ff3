"""The agent as a process: it starts or says why not, survives kill -9 without losing events, and stops cleanly."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from connector.protocol import (
    AgentHello,
    AgentStatus,
    EngineState,
    LeaseSnapshot,
    PolicyValues,
    SetPolicy,
    TransferRecorded,
)
from tests.connector.agent.fake_control_plane import AGENT_TOKEN, FakeControlPlane
from tests.connector.agent.fake_engine import FakeEngine
from tests.connector.agent.feed_client import FEED_TOKEN, FeedClient
from tests.connector.agent.samples import transfer
from tests.connector.agent.waiting import until


class Process:
    """``python -m connector.agent`` with every option in its environment."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ
        self.process: asyncio.subprocess.Process
        self.feed_port = 0
        self._log: asyncio.Task[None]
        self.log = ""

    async def start(self, *flags: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "connector.agent", *flags, env=self.environ, stderr=asyncio.subprocess.PIPE
        )
        self._log = asyncio.create_task(self._read_log())

    async def _read_log(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            text = line.decode()
            self.log += text
            if "agent_started" in text:
                self.feed_port = int(text.split("feed_port=")[1].split()[0])

    async def kill(self, number: int = signal.SIGKILL) -> int:
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> int:
        status = await asyncio.wait_for(self.process.wait(), 20.0)
        await self._log
        return status


@pytest.fixture
async def process(tmp_path: Path, engine: FakeEngine, control_plane: FakeControlPlane) -> AsyncIterator[Process]:
    (tmp_path / "agent-token").write_text(AGENT_TOKEN)
    (tmp_path / "feed-token").write_text(FEED_TOKEN)
    started = Process(
        {
            "PATH": os.environ["PATH"],
            "BACKHAUL_CONTROLPLANE_URL": control_plane.url,
            "BACKHAUL_AGENT_TOKEN_FILE": str(tmp_path / "agent-token"),
            "BACKHAUL_FEED_TOKEN_FILE": str(tmp_path / "feed-token"),
            "BACKHAUL_ENGINE_NAME": "d0",
            "BACKHAUL_LINK_PATH": str(engine.path),
            "BACKHAUL_FEED_PORT": "0",
            "BACKHAUL_STATE_DIR": str(tmp_path / "state"),
        }
    )
    yield started
    with contextlib.suppress(ProcessLookupError):
        await started.kill()


async def test_events_of_a_killed_agent_are_sent_by_the_next_one_before_its_own(
    process: Process, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await process.start()
    await until(lambda: control_plane.is_connected and engine.is_connected)
    first_boot = control_plane.of(AgentHello)[0].boot
    engine.happen(transfer("seen"))
    await until(lambda: len(control_plane.stored) == 1)
    await control_plane.stop()
    for number in range(700):
        engine.happen(transfer(f"unsent-{number}"))
    await _until_pending(process, 700)
    await process.kill(signal.SIGKILL)

    await process.start()
    await until(lambda: engine.num_connections == 2)
    engine.happen(transfer("own"))
    await _until_pending(process, 701)
    await control_plane.start()
    await until(lambda: len(control_plane.stored) == 702)

    transfers = [event.transfer_id for event in control_plane.events if isinstance(event, TransferRecorded)]
    assert transfers == ["seen", *[f"unsent-{number}" for number in range(700)], "own"]
    assert [(boot == first_boot, event.sequence) for boot, event in control_plane.stored] == [
        *[(True, sequence) for sequence in range(1, 702)],
        (False, 1),
    ]
    assert control_plane.num_foreign_batches == 0
    assert all(event.age_ms >= 0 for _, event in control_plane.stored)


async def _until_pending(process: Process, num_events: int) -> None:
    """Asks the agent itself, as the control plane is away."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + 20.0
    async with aiohttp.ClientSession() as session:
        while clock() < deadline:
            if process.feed_port:
                async with session.get(f"http://127.0.0.1:{process.feed_port}/healthz") as response:
                    if (await response.json())["num_pending_events"] == num_events:
                        return
            await asyncio.sleep(0.02)
    raise AssertionError(f"{num_events} events did not reach the agent: {process.log}")


async def test_agent_killed_again_and_again_loses_and_doubles_nothing(
    process: Process, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    num_sent = 0
    for generation in range(3):
        process.feed_port = 0
        await process.start()
        await until(lambda: engine.num_connections == generation + 1 and engine.is_connected)  # noqa: B023
        if generation == 1:
            await control_plane.stop()
        for _ in range(50):
            engine.happen(transfer(f"t{num_sent}"))
            num_sent += 1
        num_received = len(engine.received)
        await until(lambda: len(engine.received) > num_received + 1)  # noqa: B023
        await process.kill(signal.SIGKILL)
        await until(lambda: not engine.is_connected)
    await process.start()
    await control_plane.start()
    await until(lambda: len(control_plane.stored) >= num_sent)
    transfers = [event.transfer_id for event in control_plane.events if isinstance(event, TransferRecorded)]
    assert transfers == [f"t{number}" for number in range(num_sent)]


async def test_killed_agent_comes_back_with_policy_leases_and_feed(
    process: Process, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    control_plane.policy = SetPolicy(revision=6, values=PolicyValues(kv_recompute_threshold=256))
    await process.start()
    await until(lambda: engine.revision == 6)
    engine.grant("a")
    await process.kill(signal.SIGKILL)
    await control_plane.stop()
    await engine.kill()
    await engine.listen()
    engine.received.clear()
    process.feed_port = 0
    await process.start()
    await until(lambda: engine.of(SetPolicy) and process.feed_port)
    assert engine.of(SetPolicy)[0] == SetPolicy(revision=6, values=PolicyValues(kv_recompute_threshold=256))
    async with aiohttp.ClientSession() as session:
        client = await FeedClient(session, process.feed_port).connect()
        await until(lambda: client.leases.keys() == {"a"})
        await client.close()
    await control_plane.start()
    await until(lambda: any(snapshot.leases for snapshot in control_plane.of(LeaseSnapshot)))


async def test_paused_agent_does_not_blame_its_engine(
    process: Process, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await process.start()
    await until(lambda: any(status.load is not None for status in control_plane.of(AgentStatus)))
    clock = asyncio.get_running_loop().time
    paused_at = clock()
    process.process.send_signal(signal.SIGSTOP)
    await until(lambda: clock() - paused_at > 2.6)
    process.process.send_signal(signal.SIGCONT)
    num_statuses = len(control_plane.of(AgentStatus))
    await until(lambda: len(control_plane.of(AgentStatus)) > num_statuses + 15)
    assert {status.state for status in control_plane.of(AgentStatus)[num_statuses:]} == {EngineState.READY}
    assert "to=stalled" not in process.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_stops_the_agent_cleanly(
    number: int, process: Process, engine: FakeEngine, control_plane: FakeControlPlane
) -> None:
    await process.start()
    await until(lambda: control_plane.is_connected and engine.is_connected)
    engine.happen(transfer("a"))
    await until(lambda: control_plane.stored)
    assert await process.kill(number) == 0
    assert "agent_stopped" in process.log
    assert "Traceback" not in process.log
    assert AGENT_TOKEN not in process.log
    assert FEED_TOKEN not in process.log


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--agent-token-file", "/nonexistent"], "--agent-token-file: /nonexistent can't be read"),
        (["--state-dir", "/proc/nowhere"], "--state-dir: /proc/nowhere/agent-d0 can't be used"),
        (["--feed-host", "192.0.2.1"], "--feed-port: can't listen on 192.0.2.1 port 0"),
        (["--feed-host", "no such host"], "--feed-port: can't listen on no such host port 0"),
        (["--engine-name", ""], "--engine-name or BACKHAUL_ENGINE_NAME is missing"),
    ],
)
async def test_agent_that_cannot_start_says_why_in_one_sentence(
    flags: list[str], expected: str, process: Process
) -> None:
    await process.start(*flags)
    assert await process.ended() == 2
    last_line = process.log.strip().splitlines()[-1]
    assert last_line.startswith("backhaul agent: ")
    assert expected in last_line
    assert "Traceback" not in process.log


async def test_second_agent_of_an_engine_is_turned_away(process: Process, engine: FakeEngine) -> None:
    await process.start()
    await until(lambda: process.feed_port)
    second = Process(process.environ)
    await second.start()
    assert await second.ended() == 2
    assert "is in use by another agent" in second.log
