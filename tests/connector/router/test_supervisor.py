"""Several router processes at one port, as operators start them."""

import asyncio
import io
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.router.access import WHOLE_BYTES, AccessLog
from connector.router.environment import read_settings
from connector.router.settingfiles import ConfigurationError
from tests.connector.router.conftest import Scene
from tests.connector.router.fake_control_plane import ROUTER_TOKEN
from tests.connector.router.processes import environment_in, run_router, stopped
from tests.connector.router.waiting import eventually


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return environment_in(tmp_path) | {"BACKHAUL_ROUTER_PROCESSES": "2", "BACKHAUL_ROUTER_METRICS_PORT": "0"}


class Group:
    """A supervisor and what its processes say; ``log`` grows as it is read."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log = ""

    async def until(self, pattern: str, count: int) -> list[str]:
        """The first group of each of so many lines."""
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            while len(found := re.findall(pattern, self.log)) < count:
                line = (await self.process.stderr.readline()).decode()
                assert line, f"it ended: {self.log}"
                self.log += line
        return found

    @property
    def port(self) -> int:
        return int(re.findall(r"event=supervising processes=2 port=(\d+)", self.log)[0])


async def group_of(environment: dict[str, str]) -> Group:
    """Once both processes listen."""
    group = Group(await run_router(environment, "--router-port", "0"))
    await group.until(r"event=(listening)", 2)
    return group


async def ask(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


async def test_processes_have_names_state_and_metrics_of_their_own(
    still_scene: Scene, environment: dict[str, str], tmp_path: Path
) -> None:
    environment["BACKHAUL_CONTROLPLANE_URL"] = still_scene.control.url
    (tmp_path / "ROUTER_TOKEN_FILE").write_text(ROUTER_TOKEN)
    group = await group_of(environment)
    await eventually(lambda: len(still_scene.control.hellos) == 2, "both are connected")
    assert {hello.router_name for hello in still_scene.control.hellos} == {"r0-0", "r0-1"}
    assert len({hello.boot for hello in still_scene.control.hellos}) == 2
    assert {path.name for path in (tmp_path / "state" / "routers").iterdir()} == {"r0-0", "r0-1"}
    assert b'"code":"metrics_elsewhere"' in await ask(group.port, "/metrics")
    own = [int(port) for port in await group.until(r"event=metrics_listening host=127.0.0.1 port=(\d+)", 2)]
    for _ in range(8):
        assert b'"status":"ok"' in await ask(group.port, "/healthz")
    texts = [(await ask(port, "/metrics")).decode() for port in own]
    counts = [re.findall(r'requests_total\{path="/healthz",status="200"\} (\d+)', text) for text in texts]
    assert sum(int(count) for found in counts for count in found) == 8
    assert b" 404 " in await ask(own[0], "/v1/models")
    assert b'"status":"ok"' in await ask(own[0], "/healthz")
    group.log += await stopped(group.process)
    assert "r0-0 connector.router" in group.log
    assert "process_died" not in group.log


async def test_process_that_dies_is_started_again_and_the_signal_reaches_all(environment: dict[str, str]) -> None:
    group = await group_of(environment)
    (pid,) = await group.until(r"event=process_started process=0 pid=(\d+)", 1)
    os.kill(int(pid), signal.SIGKILL)
    await group.until(r"event=(process_died) process=0 status=-9", 1)
    assert b'"status":"ok"' in await ask(group.port, "/healthz")
    await group.until(r"event=(listening)", 3)
    group.process.send_signal(signal.SIGHUP)
    assert set(await group.until(r"(r0-\d) connector.router.live event=reload_asked", 2)) == {"r0-0", "r0-1"}
    await stopped(group.process)
    with pytest.raises(ConnectionRefusedError):
        await ask(group.port, "/healthz")


async def test_processes_do_not_outlive_the_one_that_started_them(environment: dict[str, str]) -> None:
    group = await group_of(environment)
    group.process.kill()
    await group.process.communicate()

    def is_free() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", group.port)) != 0

    await eventually(is_free, "both have ended")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


async def test_taken_port_ends_the_group_at_once(environment: dict[str, str], taken: int) -> None:
    process = await run_router(environment, "--router-port", str(taken))
    _, err = await process.communicate()
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1:{taken}" in err.decode()
    assert "process_started" not in err.decode()


async def test_taken_port_for_metrics_is_named(environment: dict[str, str], taken: int) -> None:
    environment |= {"BACKHAUL_ROUTER_PROCESSES": "1", "BACKHAUL_ROUTER_METRICS_PORT": str(taken)}
    process = await run_router(environment, "--router-port", "0")
    _, err = await process.communicate()
    assert process.returncode == 1
    assert f"for metrics, at 127.0.0.1:{taken})" in err.decode()


def test_several_processes_need_a_port_for_their_metrics(environment: dict[str, str]) -> None:
    del environment["BACKHAUL_ROUTER_METRICS_PORT"]
    with pytest.raises(ConfigurationError, match="BACKHAUL_ROUTER_METRICS_PORT must be set"):
        read_settings([], environment)
    environment["BACKHAUL_ROUTER_METRICS_PORT"] = "9100"
    third = read_settings(["--router-process-number", "2"], environment)
    assert (third.router_name, third.state_dir.name, third.metrics_port) == ("r0-2", "r0-2", 9102)


class Pipe(io.BytesIO):
    """Keeps what arrived as one write."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.written.append(data)
        return len(data)


async def test_access_lines_of_several_processes_do_not_mingle() -> None:
    pipe = Pipe()
    access = AccessLog(pipe, "r0-1")
    for size in (10, 700, 900, 2000, 3000, 9000, 20, 4000):
        access.write({"text": "x" * size})
    access.flush()
    assert all(len(piece) <= WHOLE_BYTES or piece.count(b"\n") == 1 for piece in pipe.written)
    lines = b"".join(pipe.written).splitlines()
    assert [len(json.loads(line)["text"]) for line in lines] == [10, 700, 900, 2000, 3000, 9000, 20, 4000]
    assert {json.loads(line)["router"] for line in lines} == {"r0-1"}
    assert len(pipe.written) < len(lines)
