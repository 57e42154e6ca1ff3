"""One router between fake engines, their feeds and a fake control plane, all on real sockets."""

import hashlib
import io
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from connector.protocol import ApiKeyHash, FleetEngine, FleetSnapshot, PolicyPatch, PolicyValues, Role
from connector.router.access import AccessLog
from connector.router.app import Router
from connector.router.assembly import Parts, assemble
from connector.router.environment import Settings
from connector.router.live import Fixed
from connector.signing import FleetKey
from tests.connector.router.fake_control_plane import ROUTER_TOKEN, FakeControlPlane
from tests.connector.router.fake_engine import ENGINE_KEY, MODEL, FakeEngine
from tests.connector.router.fake_feed import FEED_TOKEN
from tests.connector.router.waiting import eventually

API_KEY = "bh_api_default"
OTHER_KEY = "bh_api_other"


class Scene:
    """The fleet around a router, and a client of it. Engines: one prefill, two decode, unless a test changes that."""

    def __init__(self, tmp_path: Path) -> None:
        self.fleet_key = FleetKey({"k1": secrets.token_bytes(32)})
        self.control = FakeControlPlane()
        self.prefill = FakeEngine("p0", Role.PREFILL, self.fleet_key)
        self.decode = FakeEngine("d0", Role.DECODE, self.fleet_key)
        self.engines: list[FakeEngine] = [self.prefill, self.decode]
        self.api_keys = {API_KEY: "default", OTHER_KEY: "other"}
        self.operators: set[str] = set()
        self.values = PolicyValues()
        self.tenant_patches: dict[str, PolicyPatch] = {}
        self.session_patches: dict[str, PolicyPatch] = {}
        self.model_patches: dict[str, PolicyPatch] = {}
        self.draining: set[str] = set()
        self.states: dict[str, str] = {}
        self.revision = 1
        self.access = io.BytesIO()
        self.state_dir = tmp_path / "state"
        self.router: Router | None = None
        self.parts: Parts | None = None
        self._session: aiohttp.ClientSession | None = None

    async def add_engine(self, name: str, role: Role) -> FakeEngine:
        engine = FakeEngine(name, role, self.fleet_key)
        await engine.start()
        self.engines.append(engine)
        return engine

    def snapshot(self) -> FleetSnapshot:
        return FleetSnapshot(
            revision=self.revision,
            values=self.values,
            model_patches=self.model_patches,
            tenant_patches=self.tenant_patches,
            session_patches=self.session_patches,
            engines=tuple(self.facts(engine) for engine in self.engines),
            api_keys=tuple(
                ApiKeyHash(
                    key_id=k, sha256=hashlib.sha256(k.encode()).hexdigest(), tenant=t, operator=k in self.operators
                )
                for k, t in self.api_keys.items()
            ),
        )

    def facts(self, engine: FakeEngine) -> FleetEngine:
        return FleetEngine(
            name=engine.name,
            role=engine.role,
            model=MODEL,
            state=self.states.get(engine.name, "ready"),
            draining=engine.name in self.draining,
            engine_url=engine.url,
            feed_url=engine.feed.url,
            incarnation=engine.feed.incarnation,
        )

    async def publish(self) -> None:
        """Tells the router the fleet as it is now, and waits until it obeys."""
        self.revision += 1
        await self.control.publish(self.snapshot())
        await eventually(lambda: self.fleet_revision == self.revision, "the router takes the snapshot")

    @property
    def fleet_revision(self) -> int:
        return self.live.fleet.snapshot.revision

    @property
    def live(self) -> Parts:
        assert self.parts is not None
        return self.parts

    def settings(self, **changes: Any) -> Settings:
        given = {
            "controlplane_url": self.control.url,
            "router_name": "router-0",
            "router_token": Fixed(ROUTER_TOKEN),
            "host": "127.0.0.1",
            "port": 0,
            "engine_key": Fixed(ENGINE_KEY),
            "feed_token": Fixed(FEED_TOKEN),
            "fleet_key": self.fleet_key,
            "state_dir": self.state_dir,
            "otlp_endpoint": f"{self.control.url}/v1/traces",
            "max_body_bytes": 256 * 1024,
            "drain_seconds": 2.0,
            "engine_timeout_seconds": 5.0,
        }
        return Settings(**(given | changes))

    async def start_router(self, is_waiting: bool = True, **changes: Any) -> None:
        settings = self.settings(**changes)
        self.parts = assemble(settings, access=AccessLog(self.access))
        self.router = Router(settings, self.parts)
        await self.router.start()
        if is_waiting:
            await self.until_connected()

    async def until_connected(self) -> None:
        await eventually(lambda: self.live.feeds.num_connected == len(self.engines), "all feeds are connected")

    async def stop_router(self) -> None:
        if self.router is not None:
            await self.router.stop()
            self.router = None

    @property
    def url(self) -> str:
        assert self.router is not None
        return f"http://127.0.0.1:{self.router.port}"

    @property
    def client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False)
        return self._session

    def post(self, path: str, body: Any, key: str = API_KEY, **headers: str) -> Any:
        """A request in flight; ``async with`` it."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(f"{self.url}{path}", data=io.BytesIO(data), headers=sent)

    async def chat(self, messages: list[dict[str, Any]], key: str = API_KEY, **fields: Any) -> bytes:
        """One turn that must succeed; its body."""
        async with self.post("/v1/chat/completions", {"model": MODEL, "messages": messages, **fields}, key) as response:
            body: bytes = await response.read()
            assert response.status == 200, body
            return body

    async def until_leased(self, count: int) -> None:
        await eventually(lambda: len(self.live.book) == count, f"{count} leases are known")

    def access_lines(self) -> list[dict[str, Any]]:
        self.live.access.flush()
        return [json.loads(line) for line in self.access.getvalue().splitlines()]

    def metric(self, line: str) -> float:
        """The value of one series of ``/metrics``, 0 if it isn't there."""
        for text in self.live.metrics.render().decode().splitlines():
            if text.startswith(f"backhaul_router_{line} "):
                return float(text.rpartition(" ")[2])
        return 0.0

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        await self.stop_router()
        for engine in self.engines:
            await engine.stop()
        await self.control.stop()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.fixture
async def still_scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Everything but the router runs."""
    scene = Scene(tmp_path)
    try:
        await scene.control.start()
        for engine in scene.engines:
            await engine.start()
        scene.control.snapshot = scene.snapshot()
        yield scene
    finally:
        await scene.close()


@pytest.fixture
async def scene(still_scene: Scene) -> Scene:
    await still_scene.start_router()
    return still_scene
