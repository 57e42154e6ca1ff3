"""What this process itself uses, by the names that Prometheus' clients have for it, and how late its loop runs."""

import asyncio
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from connector.router.exposition import Family, Histogram

LOOK_SECONDS = 0.5

_SELF = Path("/proc/self")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class OwnUse:
    """Read when asked for. Memory and open files are told on Linux only."""

    def __init__(self) -> None:
        self._cpu = Family("counter", "process_cpu_seconds_total", "CPU time used.")
        self._started = Family("gauge", "process_start_time_seconds", "Unix time of the start.")
        self._memory = Family("gauge", "process_resident_memory_bytes", "Memory in use.")
        self._files = Family("gauge", "process_open_fds", "Open files and sockets.")
        self._max_files = Family("gauge", "process_max_fds", "Most of them that may be open.")
        self._started.only.set(time.time())

    def render(self) -> Iterator[str]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        self._cpu.only.set(used.ru_utime + used.ru_stime)
        self._max_files.only.set(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        families = [self._cpu, self._started, self._max_files]
        if _SELF.exists():
            self._memory.only.set(int((_SELF / "statm").read_text().split()[1]) * _PAGE_BYTES)
            self._files.only.set(sum(1 for _ in (_SELF / "fd").iterdir()))
            families += [self._memory, self._files]
        for family in families:
            yield from family.render()


async def watch_loop(lag: Histogram) -> None:
    """Never returns. A loop that is late has more to do than one core can: requests wait for it unseen."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        lag.observe(max(0.0, loop.time() - due))
