"""Finds and ends processes of a stack that outlived their parent, by the marks in their environment."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from deploy.local.layout import Layout

SUPERVISED_BY = "BACKHAUL_SUPERVISED_BY"
"""Carried by every process of a stack, with its run directory."""

PROGRAM_NAME = "SUPERVISOR_PROCESS_NAME"
"""Set by supervisord for each program."""

POLL_SECONDS = 0.1
EXIT_SECONDS = 2.0
SIGNALS = ((signal.SIGTERM, 10.0), (signal.SIGINT, 5.0), (signal.SIGKILL, 2.0))
"""PostgreSQL waits for its sessions at SIGTERM and ends them at SIGINT."""


def find_marked(marks: Mapping[str, str], proc: Path = Path("/proc")) -> set[int]:
    """Processes, other than this one, whose environment holds all of ``marks``."""
    wanted = {f"{name}={value}".encode() for name, value in marks.items()}
    found = set()
    for process in proc.iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        try:
            if wanted <= set((process / "environ").read_bytes().split(b"\0")):
                found.add(int(process.name))
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
    return found


def end_leftovers(layout: Layout) -> int:
    """Asks first, then kills. Returns how many there were."""
    marks = {SUPERVISED_BY: str(layout.run)}
    found = find_marked(marks)
    for number, patience_seconds in SIGNALS:
        for pid in find_marked(marks):
            _signal(pid, number)
        if wait_for_end(layout, patience_seconds):
            break
    _wait_until_exited(found)
    return len(found)


def wait_for_end(layout: Layout, seconds: float) -> bool:
    """True once no process of the stack is left; False when some are after that time."""
    deadline = time.monotonic() + seconds
    while find_marked({SUPERVISED_BY: str(layout.run)}):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _wait_until_exited(pids: set[int]) -> None:
    """A process loses its environment, by which it is found, before it closes its ports."""
    deadline = time.monotonic() + EXIT_SECONDS
    while any(_is_exiting(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS / 10)


def _is_exiting(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def kill_marked(marks: Mapping[str, str]) -> int:
    """At once, for those whose parent is gone. Returns how many there were."""
    found = find_marked(marks)
    for pid in found:
        _signal(pid, signal.SIGKILL)
    return len(found)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
