"""The control plane in its own process on an ephemeral port, on the database and Redis of the tests."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

from django.conf import settings
from django.db import connection

READY_SECONDS = 90.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1
ROOT = Path(__file__).parents[3]


class ControlPlaneServer:
    """``uvicorn controlplane.asgi:application``; may be stopped and started again on the same port."""

    def __init__(self, folder: Path, frontend_dist: Path | None = None) -> None:
        self._folder = folder
        self._frontend_dist = frontend_dist or Path(settings.FRONTEND_DIST)
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self._folder / "controlplane.log").read_text()

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "controlplane.asgi:application"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--no-access-log"]
        with (self._folder / "controlplane.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **self._environment()}, stdout=log, stderr=log
            )
        try:
            self._wait_until_ready()
        except RuntimeError:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends it hard, as a crash would: open sockets just break."""
        if self._process:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(STOP_SECONDS)
            self._process = None

    def _environment(self) -> dict[str, str]:
        database = connection.settings_dict
        secret_key = self._folder / "secret-key"
        secret_key.write_text(settings.SECRET_KEY)
        address = f"{database['HOST']}:{database['PORT']}/{database['NAME']}"
        return {
            "DJANGO_SETTINGS_MODULE": "controlplane.settings.production",
            "BACKHAUL_DATABASE_URL": f"postgresql://{database['USER']}:{quote(database['PASSWORD'])}@{address}",
            "BACKHAUL_REDIS_URL": settings.CELERY_BROKER_URL,
            "BACKHAUL_SECRET_KEY_FILE": str(secret_key),
            "BACKHAUL_FRONTEND_DIST": str(self._frontend_dist),
        }

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + READY_SECONDS
        pause = threading.Event()
        while not self._is_ready():
            pause.wait(POLL_SECONDS)
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the control plane did not start:\n{self.log}")

    def _is_ready(self) -> bool:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            client.request("GET", "/readyz")
            return client.getresponse().status == 200
        except OSError:
            return False
        finally:
            client.close()
