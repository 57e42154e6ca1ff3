"""A pair of stub engines with both routers in front of it, and the engine itself as the third way to go."""

import hashlib
import json
import secrets
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import msgspec

from connector.protocol import ApiKeyHash, FleetEngine, FleetSnapshot, PolicyValues, Role
from tests.connector.router.fake_control_plane import ROUTER_TOKEN
from tests.connector.router.fake_feed import FEED_TOKEN
from tests.load.bench_router import peer
from tests.load.bench_router.processes import Program, free_port
from tests.load.bench_router.stub_engine import MODEL

DIRECT, OURS, PEER = "engine direct", "Backhaul", "vllm-router"
API_KEY = "bh_api_bench"
PACKAGE = "tests.load.bench_router"
PROBE = json.dumps({"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "ready?"}]}).encode()


class Scene:
    """``with Scene(folder, pace_ms=0) as scene``. ``ports`` by name of the way to go."""

    def __init__(self, folder: Path, pace_ms: float, tokens: int = 64) -> None:
        self._folder = folder
        self._engine_options = ["--pace-ms", str(pace_ms), "--tokens", str(tokens)]
        self._tokens = tokens
        self._programs: list[Program] = []
        self.routers: dict[str, Program] = {}
        self.ports: dict[str, int] = {}

    def __enter__(self) -> "Scene":
        folder = self._folder
        folder.mkdir(parents=True)
        try:
            prefill, decode = self._start_engine("p0", Role.PREFILL), self._start_engine("d0", Role.DECODE)
            self.ports[DIRECT] = int(decode.engine_url.rpartition(":")[2])
            self._start_ours(prefill, decode)
            self._start_peer(prefill.engine_url, decode.engine_url)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        for program in reversed(self._programs):
            program.end()
        self._programs.clear()

    def load(self, way: str, **options: float) -> dict[str, float]:
        """One run; ``cpu_ms`` is what a request took of the router's own CPU time."""
        before = self.routers[way].cpu_seconds if way in self.routers else 0.0
        done = subprocess.run(self.load_command(way, **options), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the load on {way} failed:\n{done.stderr[-2_000:]}")
        figures: dict[str, float] = json.loads(done.stdout)
        if figures["num_errors"]:
            raise SystemExit(f"{figures['num_errors']} wrong replies through {way}: {figures['error']}")
        after = self.routers[way].cpu_seconds if way in self.routers else 0.0
        return {**figures, "cpu_ms": (after - before) * 1e3 / options["count"]}

    def load_command(self, way: str, **options: float) -> list[str]:
        command = [sys.executable, "-m", f"{PACKAGE}.load", "--port", str(self.ports[way]), "--key", API_KEY]
        command += ["--tokens", str(self._tokens)]
        for name, value in options.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        return command

    def _start(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> Program:
        program = Program(command, self._folder / f"{name}.log", environment)
        self._programs.append(program)
        return program

    def _start_engine(self, name: str, role: Role) -> FleetEngine:
        port, feed_port = free_port(), free_port()
        command = [sys.executable, "-m", f"{PACKAGE}.stub_engine", "--name", name, "--role", role.value]
        command += ["--port", str(port), "--feed-port", str(feed_port), *self._engine_options]
        self._start(name, command).wait_for(f"http://127.0.0.1:{port}/v1/models")
        return FleetEngine(
            name=name,
            role=role,
            model=MODEL,
            state="ready",
            draining=False,
            engine_url=f"http://127.0.0.1:{port}",
            feed_url=f"ws://127.0.0.1:{feed_port}/feed",
            incarnation=f"{name}-1",
        )

    def _start_ours(self, *engines: FleetEngine) -> None:
        """The real process with all of its parts on: placement, feeds, events, traces, access log."""
        control_port, port = free_port(), free_port()
        snapshot = FleetSnapshot(
            revision=1,
            values=PolicyValues(),
            model_patches={},
            tenant_patches={},
            session_patches={},
            engines=engines,
            api_keys=(ApiKeyHash(key_id="k", sha256=hashlib.sha256(API_KEY.encode()).hexdigest(), tenant="default"),),
        )
        path = self._folder / "fleet.json"
        path.write_bytes(msgspec.json.encode(snapshot))
        command = [
            sys.executable,
            "-m",
            f"{PACKAGE}.surroundings",
            "--port",
            str(control_port),
            "--snapshot",
            str(path),
        ]
        self._start("control", command)
        environment = {
            "BACKHAUL_CONTROLPLANE_URL": f"http://127.0.0.1:{control_port}",
            "BACKHAUL_ROUTER_NAME": "bench",
            "BACKHAUL_ROUTER_PORT": str(port),
            "BACKHAUL_STATE_DIR": str(self._folder / "state"),
            "BACKHAUL_ROUTER_TOKEN_FILE": self._secret("router-token", ROUTER_TOKEN),
            "BACKHAUL_ENGINE_KEY_FILE": self._secret("engine-key", "none"),
            "BACKHAUL_FEED_TOKEN_FILE": self._secret("feed-token", FEED_TOKEN),
            "BACKHAUL_FLEET_KEY_FILE": self._secret("fleet.key", f"k1 {secrets.token_hex(32)}"),
        }
        router = self._start("ours", [sys.executable, "-m", "connector.router"], environment)
        router.wait_for(f"http://127.0.0.1:{port}/readyz")
        headers = {"Authorization": f"Bearer {API_KEY}"}
        router.wait_for(f"http://127.0.0.1:{port}/v1/chat/completions", PROBE, headers)
        self.routers[OURS], self.ports[OURS] = router, port

    def _start_peer(self, prefill_url: str, decode_url: str) -> None:
        port = free_port()
        command = peer.command(peer.installed(), port, free_port(), prefill_url, decode_url)
        router = self._start("peer", command)
        router.wait_for(f"http://127.0.0.1:{port}/v1/chat/completions", PROBE)
        self.routers[PEER], self.ports[PEER] = router, port

    def _secret(self, name: str, text: str) -> str:
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_text(text + "\n")
        return str(path)
