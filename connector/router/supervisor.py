"""Several router processes at one port: started, started again when one dies, and ended together.

Each is a whole router with its own connections, index and state directory; the kernel spreads connections over them
(``SO_REUSEPORT``). What one knows of a conversation the others learn from the lease feeds, and through Redis where
that is set.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from connector.router.environment import Settings

FIRST_RESTART_SECONDS = 0.5
LONGEST_RESTART_SECONDS = 30.0
CALM_SECONDS = 60.0
"""A process that ran so long is started again after the shortest pause."""

FAREWELL_SECONDS = 15.0
"""What a process may take beyond its drain time before it is killed."""

CLEAN_STATUSES = frozenset((0, -signal.SIGTERM))
"""Drained, or told to end before it had begun."""

log = logging.getLogger(__name__)


class Supervisor:
    """``run`` once. ``argv``: the arguments that this process was given, which the others get too."""

    def __init__(self, settings: Settings, argv: Sequence[str]) -> None:
        self._settings = settings
        self._argv = tuple(argv)
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._statuses: list[int] = []

    async def run(self) -> int:
        """Exit status: 0 when all drained. Raises ``OSError`` when the address is taken."""
        loop = asyncio.get_running_loop()
        with _reserved(self._settings.host, self._settings.port) as port:
            for ending in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(ending, self._stop)
            loop.add_signal_handler(signal.SIGHUP, self._tell, signal.SIGHUP)
            log.info("event=supervising processes=%s port=%s", self._settings.processes, port)
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._settings.processes):
                    tasks.create_task(self._keep(number, port), name=f"process {number}")
        return 0 if CLEAN_STATUSES.issuperset(self._statuses) else 1

    async def _keep(self, number: int, port: int) -> None:
        """Runs one process, again and again until all are to end."""
        pause = FIRST_RESTART_SECONDS
        while not self._stopping.is_set():
            began = time.monotonic()
            status = await self._run_once(number, port)
            if self._stopping.is_set():
                self._statuses.append(status)
                return
            if time.monotonic() - began >= CALM_SECONDS:
                pause = FIRST_RESTART_SECONDS
            log.error("event=process_died process=%s status=%s restart_seconds=%s", number, status, pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            pause = min(LONGEST_RESTART_SECONDS, pause * 2)

    async def _run_once(self, number: int, port: int) -> int:
        """Exit status of one process from its start to its end; 1 if none could be started."""
        try:
            process = await self._start(number, port)
        except OSError as error:
            log.error("event=process_not_started process=%s error=%s", number, error)
            return 1
        try:
            return await self._wait(process)
        finally:
            del self._running[number]

    async def _start(self, number: int, port: int) -> asyncio.subprocess.Process:
        """Its standard input stays open as long as this process lives. SIGHUP waits until it has a handler."""
        own = ("--router-process-number", str(number), "--router-port", str(port))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "connector.router", *self._argv, *own, stdin=asyncio.subprocess.PIPE
            )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        self._running[number] = process
        log.info("event=process_started process=%s pid=%s", number, process.pid)
        if self._stopping.is_set():
            process.terminate()
        return process

    async def _wait(self, process: asyncio.subprocess.Process) -> int:
        """Its exit status; it is killed if it doesn't drain in time."""
        ending = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((ending, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ending.done():
            await asyncio.wait((ending,), timeout=self._settings.drain_seconds + FAREWELL_SECONDS)
        if not ending.done():
            log.error("event=process_killed pid=%s", process.pid)
            process.kill()
        return await ending

    def _stop(self) -> None:
        self._stopping.set()
        self._tell(signal.SIGTERM)

    def _tell(self, number: signal.Signals) -> None:
        for process in self._running.values():
            if process.returncode is None:
                process.send_signal(number)


@contextmanager
def _reserved(host: str, port: int) -> Iterator[int]:
    """The port, which nobody else can take: bound, never listened on, as long as the processes come and go."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
        yield held.getsockname()[1]


def end_with_parent(stop: Callable[[], None]) -> None:
    """Calls ``stop`` when the supervisor is gone: nothing else would end this process."""
    loop, pipe = asyncio.get_running_loop(), sys.stdin.fileno()

    def look() -> None:
        if not os.read(pipe, 1):
            loop.remove_reader(pipe)
            stop()

    loop.add_reader(pipe, look)
