"""``make down``: stops what this stack started, what uses others before what is used. State and secrets stay."""

import time
from collections.abc import Callable
from itertools import groupby

from deploy.local.console import Console, StackError
from deploy.local.exclusive import only_launcher
from deploy.local.layout import Layout
from deploy.local.leftovers import end_leftovers, wait_for_end
from deploy.local.programs import stop_wave
from deploy.local.readiness import Deadline
from deploy.local.supervisor import RUNNING_STATES, Supervisor

STOP_SECONDS = 90.0
EXIT_SECONDS = 5.0
POLL_SECONDS = 0.1


def down(layout: Layout, console: Console) -> None:
    """Returns when every process is gone. Safe to repeat."""
    if not layout.lock_file.exists():
        console.say(f"nothing was started in {layout.run}")
        return
    with only_launcher(layout):
        supervisor = Supervisor(layout)
        if supervisor.is_alive():
            _stop_in_waves(supervisor, console)
            supervisor.shutdown()
            wait_for_end(layout, EXIT_SECONDS)
        if num_ended := end_leftovers(layout):
            console.say(f"ended {num_ended} processes that had outlived their parent")
        console.say("everything is stopped")


def _stop_in_waves(supervisor: Supervisor, console: Console) -> None:
    names = [name for name, state in supervisor.states().items() if state.state in RUNNING_STATES]
    for _, group in groupby(sorted(names, key=stop_wave), key=stop_wave):
        wave = tuple(group)
        _stop_together(wave, supervisor)
        console.say(f"stopped {', '.join(wave)}")


def _stop_together(names: tuple[str, ...], supervisor: Supervisor) -> None:
    for name in names:
        supervisor.stop(name)

    def are_gone() -> bool:
        return not any(state.pid for name, state in supervisor.states().items() if name in names)

    _wait_until(are_gone, f"still running: {', '.join(names)}")


def _wait_until(condition: Callable[[], bool], complaint: str) -> None:
    deadline = Deadline.after(STOP_SECONDS)
    while not condition():
        if deadline.has_passed():
            raise StackError(f"after {STOP_SECONDS:.0f} s {complaint}.")
        time.sleep(POLL_SECONDS)
