"""Router processes as operators start them."""

import asyncio
import os
import secrets
import signal
import sys
from pathlib import Path

SECRETS = ("ROUTER_TOKEN_FILE", "ENGINE_KEY_FILE", "FEED_TOKEN_FILE")


def environment_in(folder: Path) -> dict[str, str]:
    """All that must be set; no control plane answers there."""
    found = {
        "BACKHAUL_STATE_DIR": str(folder / "state"),
        "BACKHAUL_ROUTER_NAME": "r0",
        "BACKHAUL_CONTROLPLANE_URL": "http://127.0.0.1:9",
    }
    for name in SECRETS:
        path = folder / name
        path.write_text(f"secret-{name}\nsecond line\n")
        found[f"BACKHAUL_{name}"] = str(path)
    key = folder / "fleet.key"
    key.write_text(f"k1 {secrets.token_hex(32)}\n")
    key.chmod(0o600)
    found["BACKHAUL_FLEET_KEY_FILE"] = str(key)
    return found


async def run_router(environment: dict[str, str], *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "connector.router",
        *arguments,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def started(environment: dict[str, str], *arguments: str) -> tuple[asyncio.subprocess.Process, int]:
    """A router process that listens, and its port."""
    process = await run_router(environment, "--router-port", "0", *arguments)
    return process, int(await line_with(process, "event=listening host=127.0.0.1 port="))


async def line_with(process: asyncio.subprocess.Process, text: str) -> str:
    """What follows ``text`` in the first line of the log that has it."""
    assert process.stderr is not None
    seen = []
    async with asyncio.timeout(30):
        while line := (await process.stderr.readline()).decode():
            seen.append(line)
            _, found, rest = line.strip().partition(text)
            if found:
                return rest
    raise AssertionError(f"the process ended early: {''.join(seen)}")


async def stopped(process: asyncio.subprocess.Process) -> str:
    """The rest of its log; it must end cleanly on SIGTERM."""
    process.send_signal(signal.SIGTERM)
    _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return err.decode()
