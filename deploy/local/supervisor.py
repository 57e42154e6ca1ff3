"""supervisord, the parent of every process of the stack: starts it, tells it what to run, asks it how things are.

Its socket speaks XML-RPC. The standard library's client is used, so that the launcher needs no package.
"""

import http.client
import resource
import socket
import xmlrpc.client
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.local.commands import run_logged
from deploy.local.layout import Layout
from deploy.local.leftovers import SUPERVISED_BY
from deploy.local.programs import Program, supervisor_config
from deploy.local.virtualenvs import child_environment

RPC_SECONDS = 90.0
ALREADY_STARTED = 60
NOT_RUNNING = 70
RUNNING_STATES = frozenset({"RUNNING", "STARTING", "BACKOFF"})


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """``state`` in supervisord's words: RUNNING, STARTING, BACKOFF, STOPPING, STOPPED, EXITED or FATAL."""

    name: str
    state: str
    pid: int
    uptime_seconds: int


class Supervisor:
    """Raises ``OSError`` when supervisord is gone."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        transport = UnixTransport(layout.supervisor_socket)
        self._rpc: Any = xmlrpc.client.ServerProxy("http://supervisor", transport=transport).supervisor

    def is_alive(self) -> bool:
        try:
            return bool(self._rpc.getState()["statename"] == "RUNNING")
        except OSError:
            return False

    def apply(self, programs: Sequence[Program]) -> list[str]:
        """Makes supervisord know exactly these programs; returns those stopped because their definition changed."""
        config = self._layout.supervisor_config
        hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        config.touch(mode=0o600)
        config.write_text(supervisor_config(self._layout, programs, max_open_files=hard_limit))
        if not self.is_alive():
            self._launch()
            return []
        added, changed, removed = self._rpc.reloadConfig()[0]
        for name in (*changed, *removed):
            self._rpc.stopProcessGroup(name, True)
            self._rpc.removeProcessGroup(name)
        for name in (*added, *changed):
            self._rpc.addProcessGroup(name)
        return [*changed, *removed]

    def start(self, name: str) -> bool:
        """True when it wasn't running before."""
        try:
            self._rpc.startProcess(name, False)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != ALREADY_STARTED:
                raise
            return False
        return True

    def stop(self, name: str) -> None:
        """Sends the stop signal and returns at once; ``states`` tells when it is gone."""
        try:
            self._rpc.stopProcess(name, False)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != NOT_RUNNING:
                raise

    def shutdown(self) -> None:
        self._rpc.shutdown()

    def states(self) -> dict[str, ProcessState]:
        rows: Iterable[dict[str, Any]] = self._rpc.getAllProcessInfo()
        return {
            row["name"]: ProcessState(
                name=row["name"],
                state=row["statename"],
                pid=row["pid"],
                uptime_seconds=max(0, row["now"] - row["start"]) if row["pid"] else 0,
            )
            for row in rows
        }

    def _launch(self) -> None:
        run_logged(
            [self._layout.main_python, "-m", "supervisor.supervisord", "-c", self._layout.supervisor_config],
            self._layout.log("setup-supervisor"),
            what="starting supervisord",
            directory=self._layout.root,
            environment={**child_environment(), SUPERVISED_BY: str(self._layout.run)},
        )


class UnixTransport(xmlrpc.client.Transport):
    """XML-RPC over a unix socket, one connection per call."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def parse_response(self, response: http.client.HTTPResponse) -> Any:
        try:
            return super().parse_response(response)
        finally:
            self.close()

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        connection = UnixConnection(self._path)
        self._connection = host, connection  # what close() closes
        return connection


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=RPC_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except OSError:
            self.sock.close()
            raise
