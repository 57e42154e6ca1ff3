"""Starts a stack for tests and takes it down after them, apart from any other that runs here."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.stack import ROOT, Stack

DOWN_TIMEOUT_SECONDS = 120
_NOT_INHERITED = ("BACKHAUL_DATABASE_URL", "BACKHAUL_REDIS_URL", "P", "D", "P_PREFIX_CACHE")


@contextmanager
def own_stack(folder: str, port_offset: int, up_timeout_seconds: float, **options: str) -> Iterator[Stack]:
    """``options`` are variables of ``make up``, such as ``P`` and ``D``; none is taken from the environment."""
    run = ROOT / folder
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    environment |= {"BACKHAUL_RUN_DIR": str(run), "BACKHAUL_PORT_OFFSET": str(port_offset), **options}
    launch = [sys.executable, "-m", "deploy.local"]
    try:
        subprocess.run([*launch, "up"], cwd=ROOT, env=environment, check=True, timeout=up_timeout_seconds)
        yield Stack(run, port_offset)
    finally:
        subprocess.run([*launch, "down"], cwd=ROOT, env=environment, check=True, timeout=DOWN_TIMEOUT_SECONDS)
