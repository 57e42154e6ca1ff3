"""The benchmark's processes: started, waited for, measured, ended."""

import os
import resource
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

START_SECONDS = 60.0
END_SECONDS = 10.0
POLL_SECONDS = 0.1
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def lift_file_limit() -> None:
    """As many open files as the machine allows: 2,000 streams take 4,000 sockets of a router."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Program:
    """A process whose output goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
            )

    def wait_for(self, url: str, data: bytes | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Until ``url`` answers 200."""
        deadline = time.monotonic() + START_SECONDS
        request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})  # noqa: S310
        while True:
            try:
                with urllib.request.urlopen(request, timeout=5):  # noqa: S310
                    return
            except (urllib.error.URLError, OSError) as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{url} does not answer ({error}):\n{self.last_words()}") from None
            time.sleep(POLL_SECONDS)

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2_000:]

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    @property
    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * PAGE_BYTES

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
