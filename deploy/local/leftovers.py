"""Finds and ends processes of this stack that outlived their supervisord, by the mark in their environment."""

import os
import signal
import time
from pathlib import Path

from deploy.local.layout import Layout
from deploy.local.programs import SUPERVISED_BY

POLL_SECONDS = 0.1
SIGNALS = ((signal.SIGTERM, 10.0), (signal.SIGINT, 5.0), (signal.SIGKILL, 2.0))
"""PostgreSQL waits for its sessions at SIGTERM and ends them at SIGINT."""


def find_leftovers(layout: Layout, proc: Path = Path("/proc")) -> set[int]:
    mark = f"{SUPERVISED_BY}={layout.run}".encode()
    found = set()
    for process in proc.iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.add(int(process.name))
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
    return found


def end_leftovers(layout: Layout) -> int:
    """Returns how many there were."""
    found = find_leftovers(layout)
    for number, patience_seconds in SIGNALS:
        remaining = find_leftovers(layout)
        for pid in remaining:
            _signal(pid, number)
        deadline = time.monotonic() + patience_seconds
        while remaining and find_leftovers(layout) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    return len(found)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
