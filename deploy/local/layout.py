"""Where everything of one stack lies: the checkout, its environments, and the run directory with all state."""

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from deploy.local.console import StackError

MAX_SOCKET_PATH_BYTES = 107
"""``sun_path`` of a unix socket on Linux, less its terminating zero."""

LONGEST_SOCKET_NAME = "supervisor.sock.4194304"
"""supervisord binds ``<path>.<pid>`` first and then links it."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """``root`` is the checkout, ``run`` the run directory; both absolute. ``run`` is 0700 and holds no source."""

    root: Path
    run: Path

    @property
    def main_venv(self) -> Path:
        return self.root / ".venv"

    @property
    def engine_venv(self) -> Path:
        return self.root / ".venv-engine"

    @property
    def main_python(self) -> Path:
        return self.main_venv / "bin" / "python"

    @property
    def engine_python(self) -> Path:
        return self.engine_venv / "bin" / "python"

    @property
    def frontend(self) -> Path:
        return self.root / "frontend"

    @property
    def model(self) -> Path:
        return self.run / "model"

    @property
    def logs(self) -> Path:
        return self.run / "logs"

    @property
    def state(self) -> Path:
        return self.run / "state"

    @property
    def stamps(self) -> Path:
        return self.run / "stamps"

    @property
    def lock_file(self) -> Path:
        return self.run / "lock"

    @property
    def supervisor_config(self) -> Path:
        return self.run / "supervisord.conf"

    @property
    def supervisor_pid(self) -> Path:
        return self.run / "supervisord.pid"

    @property
    def sockets(self) -> Path:
        """``<run>/engines``, or a short private directory when a socket in there would exceed the kernel's limit."""
        short = [
            Path(base) / self.short_name for base in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir()) if base
        ]
        for folder in (self.run / "engines", *short):
            if len(str(folder / LONGEST_SOCKET_NAME).encode()) <= MAX_SOCKET_PATH_BYTES:
                return folder
        raise StackError(f"every place for sockets has too long a path; set TMPDIR shorter than {short[-1].parent}.")

    @property
    def short_name(self) -> str:
        """For the few things that can't lie in the run directory."""
        return f"backhaul-{hashlib.sha256(str(self.run).encode()).hexdigest()[:12]}"

    @property
    def supervisor_socket(self) -> Path:
        return self.sockets / "supervisor.sock"

    def link_path(self, engine_name: str) -> Path:
        return self.sockets / f"{engine_name}.sock"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def create(self) -> None:
        """Makes the run directory and its parts, private to this user. Raises ``StackError`` when that can't be had."""
        if any(character in str(self.run) for character in ';#"\n%'):
            raise StackError(
                f"the path {self.run} holds one of ; # % \" or a line break, which supervisord can't quote."
            )
        for folder in (self.run, self.logs, self.state, self.stamps, self.sockets):
            _make_private(folder)
        (self.run / "sockets-dir").write_text(f"{self.sockets}\n")


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise StackError(f"the directory {folder} can't be made: {error.strerror}.") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StackError(f"{folder} is not a directory of this user; move it away or set BACKHAUL_RUN_DIR.")
    folder.chmod(0o700)
