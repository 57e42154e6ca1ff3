"""Starts one program as supervisord would, and waits for it without a fixed pause."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deploy.local.programs import Program

PATIENCE_SECONDS = 60.0


@contextmanager
def running(program: Program) -> Iterator[subprocess.Popen[bytes]]:
    """Stopped with the program's own signal; it must leave within its own time."""
    process = subprocess.Popen(
        [str(part) for part in program.command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/"
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(getattr(signal, f"SIG{program.stop_signal}"))
        process.communicate(timeout=program.stop_seconds)


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        await asyncio.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - a zombie counts as gone
        return stat.read().rpartition(")")[2].split()[0] != "Z"
