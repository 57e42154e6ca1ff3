"""Asks each part of the stack whether it does its work, and waits until all do."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local.commands import last_words
from deploy.local.console import Console, StackError
from deploy.local.layout import Layout
from deploy.local.supervisor import ProcessState, Supervisor
from deploy.local.virtualenvs import child_environment

ANSWER_SECONDS = 3.0
CELERY_SECONDS = 20.0
POLL_SECONDS = 0.3
PROGRESS_SECONDS = 10.0
TAIL_BYTES = 64 * 1024

Probe = Callable[[], str]
"""Answers "" when the part works, else what is wrong in a few words."""

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Loopback is never asked through a proxy, whatever the environment says."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    seconds: float
    started: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(seconds=seconds, started=time.monotonic())

    def has_passed(self) -> bool:
        return time.monotonic() - self.started > self.seconds


def http_probe(url: str, *, accepts_any_status: bool = False) -> Probe:
    def probe() -> str:
        try:
            with DIRECT.open(url, timeout=ANSWER_SECONDS) as response:
                return "" if response.status == 200 else f"HTTP {response.status}"
        except urllib.error.HTTPError as error:
            return "" if accepts_any_status else f"HTTP {error.code}"
        except urllib.error.URLError as error:
            return str(getattr(error.reason, "strerror", None) or error.reason).lower()
        except OSError as error:
            return str(error).lower()

    return probe


def celery_node(layout: Layout) -> str:
    """The worker's name; two stacks may share a Redis server."""
    return f"{layout.short_name}@localhost"


def celery_probe(layout: Layout, variables: Mapping[str, str]) -> Probe:
    """The worker answers a ping through the broker. Named, so that the answer isn't waited for any longer."""
    ping = ("inspect", "ping", "--timeout", "5", "--destination", celery_node(layout))
    command = [str(layout.main_python), "-m", "celery", "-A", "controlplane", *ping]
    environment = {**child_environment(), **variables}

    def probe() -> str:
        try:
            result = subprocess.run(
                command, cwd=layout.root, env=environment, capture_output=True, timeout=CELERY_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "no answer to a ping"
        return "" if result.returncode == 0 else "no answer to a ping"

    return probe


def engines_ready_probe(controlplane_url: str, token: str, names: Iterable[str]) -> Probe:
    """The control plane has heard of every engine through its agent, and calls it ready."""
    wanted = set(names)

    def probe() -> str:
        request = urllib.request.Request(f"{controlplane_url}/api/v1/engines/?limit=100")  # noqa: S310 - loopback HTTP
        request.add_header("Authorization", f"Bearer {token}")
        try:
            with DIRECT.open(request, timeout=ANSWER_SECONDS) as response:
                rows: list[dict[str, Any]] = json.load(response)["results"]
        except (OSError, ValueError, KeyError) as error:
            return f"the engines can't be listed: {error}"
        missing = sorted(wanted - {row["name"] for row in rows if row["state"] == "ready"})
        return f"not ready in the control plane: {', '.join(missing)}" if missing else ""

    return probe


def wait_until_ready(
    probes: Mapping[str, Probe], supervisor: Supervisor, layout: Layout, console: Console, *, seconds: float
) -> None:
    """Prints each part as it gets ready. Raises ``StackError`` at once when a process has died, or at the deadline."""
    complaints = dict.fromkeys(probes, "not asked yet")
    deadline, progress = Deadline.after(seconds), Deadline.after(PROGRESS_SECONDS)
    first_pids = {name: state.pid for name, state in supervisor.states().items()}
    with ThreadPoolExecutor(max_workers=max(1, len(probes))) as pool:
        asked = {pool.submit(probe): name for name, probe in probes.items()}
        while asked:
            for answer in wait(asked, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                name = asked.pop(answer)
                complaints[name] = answer.result()
                if complaints[name]:
                    asked[pool.submit(_ask_later, probes[name])] = name
                else:
                    console.say(f"{name}: ready")
            unready = {name: complaint for name, complaint in complaints.items() if complaint}
            _fail_for_dead(unready, supervisor.states(), first_pids, layout)
            if unready and deadline.has_passed():
                name, complaint = next(iter(unready.items()))
                raise StackError(f"{name} was not ready after {seconds:.0f} s: {complaint}; see {layout.log(name)}.")
            if unready and progress.has_passed():
                console.say(f"waiting for {', '.join(unready)}")
                progress = Deadline.after(PROGRESS_SECONDS)


def _ask_later(probe: Probe) -> str:
    time.sleep(POLL_SECONDS)
    return probe()


def _fail_for_dead(
    names: Iterable[str], states: Mapping[str, ProcessState], first_pids: Mapping[str, int], layout: Layout
) -> None:
    for name in names:
        state = states.get(name)
        if state is None:
            continue
        has_restarted = bool(first_pids.get(name)) and state.pid not in (0, first_pids[name])
        if has_restarted or state.state in ("BACKOFF", "FATAL", "EXITED"):
            raise StackError(f"{name} stopped while starting: {log_tail(layout.log(name))} (make logs S={name})")


def log_tail(log: Path) -> str:
    """What the process said of its end."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            return last_words(file.read().decode(errors="replace"))
    except FileNotFoundError:
        return "it left no log"
