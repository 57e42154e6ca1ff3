"""One agent between a fake engine, a fake control plane and feed clients, all on real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import pytest

from connector.agent.app import Agent, Tuning
from connector.agent.control_socket import ControlTiming
from connector.agent.engine_link import LinkTiming
from connector.agent.environment import Options, Secret
from connector.agent.export import ExportTiming
from connector.agent.feed import FeedLimits
from tests.connector.agent.fake_control_plane import AGENT_TOKEN, FakeControlPlane
from tests.connector.agent.fake_engine import FakeEngine
from tests.connector.agent.feed_client import FEED_TOKEN, FeedClient

FAST = Tuning(
    link=LinkTiming(
        ping_interval=0.05, stall_after=0.6, tick=0.02, stable_after=0.5, first_retry=0.01, longest_retry=0.05
    ),
    control=ControlTiming(first_retry=0.01, longest_retry=0.05),
    export=ExportTiming(gather=0.01, first_retry=0.01, longest_retry=0.05),
    feed=FeedLimits(load_interval=0.05, release_deadline=2.0),
)
"""Everything but waiting is as in production."""

RunAgent = Callable[..., AbstractAsyncContextManager[Agent]]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[FakeEngine]:
    fake = FakeEngine(tmp_path / "engine.sock")
    await fake.start()
    yield fake
    fake.thaw()
    await fake.kill()


@pytest.fixture
async def control_plane() -> AsyncIterator[FakeControlPlane]:
    fake = FakeControlPlane()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def options(tmp_path: Path, engine: FakeEngine, control_plane: FakeControlPlane) -> Options:
    return Options(
        controlplane_url=control_plane.url,
        agent_token=Secret(AGENT_TOKEN),
        engine_name="d0",
        link_path=engine.path,
        engine_url="http://127.0.0.1:8200",
        feed_host="127.0.0.1",
        feed_port=0,
        feed_url="",
        feed_token=Secret(FEED_TOKEN),
        state_dir=tmp_path / "state",
        otlp_endpoint=f"{control_plane.url}/v1/traces",
    )


@pytest.fixture
def run_agent(options: Options) -> RunAgent:
    """``async with run_agent() as agent``: a new agent process's worth of objects on the same state directory."""

    @contextlib.asynccontextmanager
    async def run(tuning: Tuning = FAST, given: Options | None = None) -> AsyncIterator[Agent]:
        agent = Agent(given or options, tuning)
        running = asyncio.create_task(agent.run())
        started = asyncio.create_task(agent.started.wait())
        await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            started.cancel()
            running.result()
        try:
            yield agent
            assert not running.done(), "the agent ended by itself"
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    return run


@pytest.fixture
async def agent(run_agent: RunAgent) -> AsyncIterator[Agent]:
    async with run_agent() as running:
        yield running


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


@pytest.fixture
async def router(agent: Agent, session: aiohttp.ClientSession) -> AsyncIterator[FeedClient]:
    client = await FeedClient(session, agent.feed_port).connect()
    yield client
    await client.close()
