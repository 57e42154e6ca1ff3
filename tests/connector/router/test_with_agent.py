"""Router and real agent together: leases, releases and engine states over the feed as both sides speak it."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from connector.agent.app import Agent
from connector.agent.environment import Options, Secret
from connector.protocol import LeaseOffer, ReleaseLease
from tests.connector.agent.conftest import FAST
from tests.connector.agent.fake_engine import FakeEngine as EngineLinkEnd
from tests.connector.router.conftest import MODEL, Scene, assistant, user
from tests.connector.router.fake_feed import FEED_TOKEN
from tests.connector.router.waiting import eventually


class AgentFeed:
    """Stands where a scene's fake feed stands; behind it are a real agent and the engine's end of its link."""

    def __init__(self, folder: Path) -> None:
        self.link = EngineLinkEnd(folder / "d0.sock")
        self._options = Options(
            controlplane_url="http://127.0.0.1:9",
            agent_token=Secret("bh_agent_test"),
            engine_name="d0",
            link_path=self.link.path,
            engine_url="http://127.0.0.1:8200",
            feed_host="127.0.0.1",
            feed_port=0,
            feed_url="",
            feed_token=Secret(FEED_TOKEN),
            state_dir=folder / "agent",
            otlp_endpoint="http://127.0.0.1:9/v1/traces",
        )
        self._agent: Agent | None = None
        self._running: asyncio.Task[object] | None = None

    @property
    def url(self) -> str:
        assert self._agent is not None
        return f"ws://127.0.0.1:{self._agent.feed_port}/feed"

    @property
    def incarnation(self) -> str:
        return self.link.incarnation

    async def start(self) -> None:
        await self.link.start()
        self._agent = Agent(self._options, FAST)
        self._running = asyncio.create_task(self._agent.run())
        await self._agent.started.wait()
        await eventually(lambda: self.link.is_connected, "the agent is at the engine's link")

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        await self.link.kill()

    async def grant(self, offer: LeaseOffer) -> None:
        self.link.leases[offer.lease.lease_id] = offer
        self.link.send(offer)


@pytest.fixture
async def feed(still_scene: Scene, tmp_path: Path) -> AgentFeed:
    feed = AgentFeed(tmp_path)
    await still_scene.decode.feed.stop()
    still_scene.decode.feed = feed  # type: ignore[assignment]
    await feed.start()
    still_scene.control.snapshot = still_scene.snapshot()
    await still_scene.start_router()
    return feed


async def test_lease_comes_through_the_agent_and_is_offered(still_scene: Scene, feed: AgentFeed) -> None:
    await still_scene.chat([user("hi")])
    await still_scene.until_leased(1)
    await still_scene.chat([user("hi"), assistant("Hello you"), user("more")])
    first = still_scene.decode.received[0].envelope
    assert first is not None
    assert still_scene.prefill.received[-1].offer == f"d-offer-{first.turn_id}"
    await still_scene.stop_router()
    await still_scene.start_router()
    await still_scene.chat([user("hi"), assistant("Hello you"), user("more"), assistant("Hello you"), user("on")])
    assert still_scene.prefill.received[-1].offer is not None


async def test_release_reaches_the_engine_and_is_answered(still_scene: Scene, feed: AgentFeed) -> None:
    still_scene.decode.gate = asyncio.Semaphore(1).acquire  # type: ignore[assignment]
    body = {"model": MODEL, "messages": [user("hi")], "stream": True}
    response = await still_scene.post("/v1/chat/completions", body).__aenter__()
    await response.content.readany()
    response.close()
    released = await eventually(lambda: feed.link.of(ReleaseLease), "the engine is asked")
    assert released[0].key == still_scene.decode.received[0].headers["X-Request-Id"]
    await eventually(lambda: still_scene.metric('releases_total{outcome="not_found"}') == 2, "both are answered")


async def test_engine_that_dies_loses_its_leases_here_too(still_scene: Scene, feed: AgentFeed) -> None:
    await still_scene.chat([user("hi")])
    await still_scene.until_leased(1)
    await feed.link.kill()
    await eventually(lambda: not still_scene.live.fleet.get("d0").is_up, "the engine is seen down")  # type: ignore[union-attr]
    await feed.link.start()
    await eventually(lambda: still_scene.live.fleet.get("d0").is_up, "the engine is back")  # type: ignore[union-attr]
    await eventually(lambda: len(still_scene.live.book) == 0, "leases of the old incarnation are gone")
    await still_scene.chat([user("hi"), assistant("Hello you"), user("more")])
    assert still_scene.prefill.received[-1].offer is None
