"""The running stack as a test sees it: addresses, secrets, REST, engines' own counters, processes."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from connector.signing import FleetKey

ROOT = Path(__file__).resolve().parents[2]
ENFORCERS = ("prefill-0", "decode-0", "router-0")
"""Of the stack itself; engines that other tests brought and ended never answer again."""
T = TypeVar("T")


async def eventually(probe: Callable[[], Awaitable[T]], *, within_seconds: float, what: str) -> T:
    """The first true answer of ``probe``. Fails with its last answer once the time is over."""
    deadline = time.monotonic() + within_seconds
    while True:
        answer = await probe()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"{what}: not within {within_seconds:.0f} s; last seen: {answer!r}"
        await asyncio.sleep(0.1)


class Stack:
    """One stack of ``deploy.local``, in a run directory and at ports of its own."""

    def __init__(self, run: Path, port_offset: int) -> None:
        self.run = run
        self.offset = port_offset
        self.controlplane_url = f"http://127.0.0.1:{8000 + port_offset}"
        self.router_url = f"http://127.0.0.1:{8080 + port_offset}"
        self.prefill_url = f"http://127.0.0.1:{8100 + port_offset}"
        self.decode_url = f"http://127.0.0.1:{8200 + port_offset}"
        self.decode_feed_url = f"ws://127.0.0.1:{8210 + port_offset}/feed"

    # ------------------------------------------------ secrets

    def secret(self, name: str) -> str:
        return (self.run / name).read_text().strip()

    @property
    def fleet_key(self) -> FleetKey:
        return FleetKey.load(self.run / "fleet.key")

    # ------------------------------------------------ HTTP

    def rest(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.secret('admin-token')}"}
        return httpx.AsyncClient(base_url=f"{self.controlplane_url}/api/v1", headers=headers, timeout=30)

    def engine(self, url: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.secret('engine-key')}"}
        return httpx.AsyncClient(base_url=url, headers=headers, timeout=120)

    def client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.secret('api-key')}"}
        return httpx.AsyncClient(base_url=f"{self.router_url}/v1", headers=headers, timeout=120)

    async def get(self, path: str, **params: Any) -> Any:
        async with self.rest() as rest:
            response = await rest.get(path, params=params)
        response.raise_for_status()
        return response.json()

    async def rows(self, path: str, **params: Any) -> list[dict[str, Any]]:
        """Every page of a list."""
        async with self.rest() as rest:
            page = (await rest.get(path, params=params)).raise_for_status().json()
            rows: list[dict[str, Any]] = page["results"]
            while page["next"]:
                page = (await rest.get(page["next"])).raise_for_status().json()
                rows += page["results"]
        return rows

    async def publish(self, scope: str = "fleet", reason: str = "test", **values: Any) -> int:
        """The new revision's number."""
        async with self.rest() as rest:
            body = {"scope": scope, "values": values, "reason": reason}
            response = await rest.post("/policies/", json=body)
        assert response.status_code == 201, response.text
        return int(response.json()["number"])

    async def acks(self, number: int) -> dict[str, dict[str, Any]]:
        return {ack["enforcer"]: ack for ack in (await self.get(f"/policies/{number}/"))["acks"]}

    async def publish_and_wait(self, scope: str = "fleet", **values: Any) -> int:
        """Published and in force everywhere in the stack."""
        number = await self.publish(scope, **values)

        async def all_acked() -> bool:
            acks = await self.acks(number)
            return all(acks.get(name, {}).get("state") == "acked" for name in ENFORCERS)

        await eventually(all_acked, within_seconds=10, what=f"every enforcer acks revision {number}")
        return number

    async def counters(self, engine_url: str) -> dict[str, float]:
        """vLLM's own metrics, summed over labels."""
        async with self.engine(engine_url) as engine:
            text = (await engine.get("/metrics")).text
        sums: dict[str, float] = {}
        for line in text.splitlines():
            if match := re.match(r"^(vllm:[a-z_]+)(?:\{[^}]*\})? ([0-9.e+-]+)$", line):
                sums[match[1]] = sums.get(match[1], 0.0) + float(match[2])
        return sums

    # ------------------------------------------------ processes

    def pid(self, program: str) -> int:
        """Pid of a part, as supervisord knows it. Raises when it is not running."""
        printed = self._supervisorctl("pid", program).stdout.strip()
        assert printed.isdigit(), f"{program} does not run: {printed}"
        assert printed != "0", f"{program} does not run"
        return int(printed)

    def stop(self, program: str) -> None:
        self._supervisorctl("stop", program)

    def start(self, program: str) -> None:
        self._supervisorctl("start", program)

    def kill(self, program: str) -> int:
        """SIGKILL to the part and its children, at once; supervisord starts it again."""
        pid = self.pid(program)
        for victim in (*self.children(pid), pid):
            os.kill(victim, signal.SIGKILL)
        return pid

    def children(self, pid: int) -> list[int]:
        """All descendants."""
        listing = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        parents = {int(child): int(parent) for child, parent in (line.split() for line in listing.splitlines())}
        found, grew = {pid}, True
        while grew:
            more = {child for child, parent in parents.items() if parent in found} - found
            grew = bool(more)
            found |= more
        return sorted(found - {pid})

    def engine_core_pid(self, program: str) -> int:
        for child in self.children(self.pid(program)):
            if "EngineCor" in Path(f"/proc/{child}/comm").read_text():
                return child
        raise AssertionError(f"{program} has no engine core process")

    def _supervisorctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        address = f"unix://{(self.run / 'sockets-dir').read_text().strip()}/supervisor.sock"
        command = [sys.executable, "-m", "supervisor.supervisorctl", "-s", address, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
