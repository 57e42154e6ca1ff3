"""``make status`` and ``make logs``: how each part is, and what it said."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from deploy.local.console import Console, StackError
from deploy.local.layout import Layout
from deploy.local.parts import probe_of, read_record
from deploy.local.supervisor import ProcessState, Supervisor

COLUMNS = "{:16} {:>8} {:>10} {:10} {:>6}  {}"


def status(layout: Layout, console: Console) -> bool:
    """Prints the table; True when every part runs and works."""
    record = read_record(layout)
    supervisor = Supervisor(layout)
    states = supervisor.states() if supervisor.is_alive() else {}
    probes = {
        part.name: probe_of(part, layout, record.celery_variables) for part in record.parts if part.name in states
    }
    with ThreadPoolExecutor(max_workers=16) as pool:
        healths = dict(zip(probes, pool.map(lambda probe: probe() or "ok", probes.values()), strict=True))
    console.plain(COLUMNS.format("part", "pid", "uptime", "state", "port", "health"))
    all_well = True
    for part in record.parts:
        state = states.get(part.name)
        health = healths.get(part.name, "") if state and state.pid else "down"
        all_well = all_well and health == "ok"
        console.plain(
            COLUMNS.format(
                part.name,
                state.pid if state and state.pid else "-",
                readable_duration(state.uptime_seconds) if state and state.pid else "-",
                _shown_state(state, health),
                part.port or "-",
                health,
            )
        )
    return all_well


def _shown_state(state: ProcessState | None, health: str) -> str:
    """supervisord calls a part starting until a fixed time is over, whether it works already or not."""
    if state is None:
        return "stopped"
    return "running" if health == "ok" else state.state.lower()


def readable_duration(seconds: int) -> str:
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


def logs(layout: Layout, name: str) -> NoReturn:
    """Becomes ``tail``: follows on a terminal, prints the end of each log otherwise."""
    files = [layout.log(name)] if name else sorted(layout.logs.glob("*.log"))
    if not files or not all(file.exists() for file in files):
        known = ", ".join(path.stem for path in sorted(layout.logs.glob("*.log")))
        raise StackError(f"there is no log of {name or 'anything'}; there are: {known or 'none'}.")
    follow = ["-F"] if sys.stdout.isatty() else []
    os.execvp("tail", ["tail", "-n", "50" if name else "10", *follow, *map(str, files)])  # noqa: S606
