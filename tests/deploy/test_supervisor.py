"""A real supervisord, in a path with a space: start, restart, change, stop, and what a kill leaves."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.console import Console, StackError
from deploy.local.exclusive import only_launcher
from deploy.local.layout import Layout
from deploy.local.leftovers import SUPERVISED_BY, end_leftovers, find_marked
from deploy.local.programs import Program, supervisor_config
from deploy.local.readiness import wait_until_ready
from deploy.local.stop import down
from deploy.local.supervisor import Supervisor
from tests.deploy.processes import is_alive, until

SLEEPER = "import os, time; print('word is', os.environ['WORD'], flush=True); time.sleep(600)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEPER!r}])"
FAILING = "raise SystemExit('RuntimeError: no block size given')"


def program(
    name: str = "sleeper", code: str = SLEEPER, word: str = 'tw%o;"words" \\here#', **options: object
) -> Program:
    return Program(name=name, command=(sys.executable, "-c", code), environment={"WORD": word}, **options)  # type: ignore[arg-type]


@pytest.fixture
def supervisor(layout: Layout) -> Iterator[Supervisor]:
    layout.lock_file.touch()
    yield Supervisor(layout)
    down(layout, Console(sys.stdout))
    assert not find_marked({SUPERVISED_BY: str(layout.run)})


async def until_running(supervisor: Supervisor, layout: Layout, name: str, *, times: int = 1) -> int:
    """Its pid, once it said its word for the n-th time: a signal to one that isn't set up yet could be lost."""

    def has_spoken() -> bool:
        return layout.log(name).exists() and layout.log(name).read_text().count("word is") == times

    await until(has_spoken, f"{name} runs")
    return supervisor.states()[name].pid


async def until_logged(layout: Layout, name: str, text: str) -> None:
    await until(lambda: layout.log(name).exists() and text in layout.log(name).read_text(), f"{name} logs {text!r}")


async def test_program_gets_its_environment_unharmed(supervisor: Supervisor, layout: Layout) -> None:
    supervisor.apply([program()])
    assert supervisor.start("sleeper")
    assert not supervisor.start("sleeper")
    await until_logged(layout, "sleeper", 'word is tw%o;"words" \\here#')


async def test_killed_program_comes_back(supervisor: Supervisor, layout: Layout) -> None:
    supervisor.apply([program(start_seconds=0)])
    supervisor.start("sleeper")
    first = await until_running(supervisor, layout, "sleeper")
    os.kill(first, signal.SIGKILL)
    assert await until_running(supervisor, layout, "sleeper", times=2) != first


async def test_children_of_a_killed_program_do_not_stay(supervisor: Supervisor, layout: Layout) -> None:
    supervisor.apply([program(code=PARENT, start_seconds=0)])
    supervisor.start("sleeper")
    first = await until_running(supervisor, layout, "sleeper")
    (child,) = find_marked({SUPERVISED_BY: str(layout.run), "SUPERVISOR_PROCESS_NAME": "sleeper"}) - {first}
    os.kill(first, signal.SIGKILL)
    await until_logged(layout, "sleeper", "killed 1 processes that an earlier run had left")
    await until(lambda: not is_alive(child), "the orphan is gone")


async def test_only_changed_programs_are_restarted(supervisor: Supervisor, layout: Layout) -> None:
    supervisor.apply([program("kept"), program("changed"), program("dropped")])
    for name in ("kept", "changed", "dropped"):
        supervisor.start(name)
    before = {name: await until_running(supervisor, layout, name) for name in ("kept", "changed", "dropped")}
    assert supervisor.apply([program("kept"), program("changed", word="new")]) == ["changed", "dropped"]
    states = supervisor.states()
    assert set(states) == {"kept", "changed"}
    assert states["kept"].pid == before["kept"]
    assert states["changed"].pid == 0
    assert not is_alive(before["dropped"])


async def test_killed_supervisord_leaves_nothing_that_the_next_start_trips_over(
    supervisor: Supervisor, layout: Layout
) -> None:
    supervisor.apply([program()])
    supervisor.start("sleeper")
    orphan = await until_running(supervisor, layout, "sleeper")
    os.kill(int(layout.supervisor_pid.read_text()), signal.SIGKILL)
    await until(lambda: not supervisor.is_alive(), "supervisord is gone")
    assert is_alive(orphan)
    assert end_leftovers(layout) == 1
    assert not is_alive(orphan)
    supervisor.apply([program()])
    assert supervisor.start("sleeper")
    assert await until_running(supervisor, layout, "sleeper", times=2) != orphan


async def test_program_that_dies_at_start_is_reported_with_its_last_words(
    supervisor: Supervisor, layout: Layout
) -> None:
    supervisor.apply([program(code=FAILING)])
    supervisor.start("sleeper")
    with pytest.raises(StackError, match="sleeper stopped while starting: RuntimeError: no block size given"):
        wait_until_ready({"sleeper": lambda: "refused"}, supervisor, layout, Console(sys.stdout), seconds=20)


async def test_part_that_never_gets_ready_is_named_with_its_complaint(supervisor: Supervisor, layout: Layout) -> None:
    supervisor.apply([program()])
    supervisor.start("sleeper")
    with pytest.raises(StackError, match="sleeper was not ready after 1 s: HTTP 503; see "):
        wait_until_ready({"sleeper": lambda: "HTTP 503"}, supervisor, layout, Console(sys.stdout), seconds=1)


async def test_socket_and_configuration_are_private(supervisor: Supervisor, layout: Layout) -> None:
    supervisor.apply([program()])
    await until(supervisor.is_alive, "supervisord answers")
    assert layout.supervisor_config.stat().st_mode & 0o077 == 0
    assert layout.supervisor_socket.stat().st_mode & 0o077 == 0


def test_second_launcher_is_told_of_the_first(layout: Layout) -> None:
    refused = pytest.raises(StackError, match=rf"another make up or make down \(pid {os.getpid()}\) is at work")
    with only_launcher(layout), refused:
        down(layout, Console(sys.stdout))
    with only_launcher(layout):
        assert Path(layout.lock_file).read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("word", ["a'b\"c", "one ;two", "one #two", "one\ntwo"])
def test_value_that_supervisord_cannot_pass_on_is_refused(layout: Layout, word: str) -> None:
    with pytest.raises(StackError, match="supervisord can't pass on"):
        supervisor_config(layout, [program(word=word)], max_open_files=1024)
