"""An engine's processes as Linux sees them: which they are, the CPU time they took, and keeping them still."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.local.engines import Engine

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def api_server_of(engine: Engine) -> int:
    """The process that was started for the engine; its descendants are the core and the workers."""
    wanted = f"\0--port\0{engine.port}\0"
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "cmdline").read_text():
                return int(folder.name)
        except OSError:
            continue
    raise SystemExit(f"no process serves {engine.name} on port {engine.port}")


def descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = _stat(int(folder.name))
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _stat(pid: int) -> list[str]:
    """Fields of ``/proc/<pid>/stat`` from the state on; the name before them may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def cpu_seconds(pids: list[int]) -> float:
    ticks = sum(int(fields[11]) + int(fields[12]) for fields in map(_stat, pids))
    return ticks / TICKS_PER_SECOND


def cpu_share(engine: Engine, seconds: float) -> float:
    """Percent of one core that core and workers take over that time; the API server is not counted."""
    pids = descendants(api_server_of(engine))
    before, start = cpu_seconds(pids), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pids) - before) / (time.monotonic() - start) * 100


@contextmanager
def held_still(engines: list[Engine]) -> Iterator[None]:
    """Nothing of these engines runs meanwhile: stock vLLM steps a thousand times a second while it holds blocks."""
    servers = [api_server_of(engine) for engine in engines]
    pids = [pid for server in servers for pid in (server, *descendants(server))]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
