"""Starts one whole stack, real pair included, for all end-to-end tests; every test leaves the policy as it found it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from connector.protocol import PolicyValues
from tests.e2e.stack import ROOT, Stack

PORT_OFFSET = 11000
UP_TIMEOUT_SECONDS = 1500


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """``BACKHAUL_E2E_RUN_DIR`` and ``BACKHAUL_E2E_PORT_OFFSET`` name a running stack to use instead of an own one."""
    if given := os.environ.get("BACKHAUL_E2E_RUN_DIR"):
        yield Stack(Path(given), int(os.environ.get("BACKHAUL_E2E_PORT_OFFSET", "0")))
        return
    run = ROOT / ".run-e2e"
    environment = os.environ | {"BACKHAUL_RUN_DIR": str(run), "BACKHAUL_PORT_OFFSET": str(PORT_OFFSET)}
    for name in ("BACKHAUL_DATABASE_URL", "BACKHAUL_REDIS_URL", "P", "D", "P_PREFIX_CACHE"):
        environment.pop(name, None)
    launch = [sys.executable, "-m", "deploy.local"]
    try:
        subprocess.run([*launch, "up"], cwd=ROOT, env=environment, check=True, timeout=UP_TIMEOUT_SECONDS)
        yield Stack(run, PORT_OFFSET)
    finally:
        subprocess.run([*launch, "down"], cwd=ROOT, env=environment, check=True, timeout=120)


@pytest.fixture(autouse=True)
async def default_policy(stack: Stack) -> None:
    """Each test starts from the defaults, in force on every enforcer."""
    defaults = PolicyValues()
    values = {field: getattr(defaults, field) for field in defaults.__struct_fields__}
    current = await stack.get("/policies/effective/", engine="prefill-0")
    if current["values"] != values:
        await stack.publish_and_wait(**values)
