"""Runs the layout's tests on a release's own classes: its Python sources before the installed vLLM on the path.

Its compiled extension isn't there, so nothing computes; the connector's classes, which are Python, are all its own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.contract.releases.report import say

TESTS = Path(__file__).parents[1] / "layout"
CHECKOUT = Path(__file__).parents[3]
RUN_SECONDS = 600


class LayoutRun:
    """``root`` holds the release's ``vllm`` folder."""

    def __init__(self, version: str, root: Path) -> None:
        self._version = version
        self._root = root

    def passes(self) -> bool:
        """Tells the outcome, and the failures."""
        done = self.run()
        tail = done.stdout.strip().splitlines()[-1:] or done.stderr.strip().splitlines()[-1:]
        say(f"  our classes on those of {self._version}: {tail[0] if tail else 'no output'}")
        if done.returncode != 0:
            failures = [line for line in done.stdout.splitlines() if re.match(r"(FAILED|ERROR|E  )", line)]
            say("\n".join(f"    {line}" for line in failures))
        return done.returncode == 0

    def run(self) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(self._root), str(CHECKOUT))),
            "BACKHAUL_LAYOUT_RELEASE": self._version,
            "VLLM_LOGGING_LEVEL": "ERROR",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS)]
        return subprocess.run(
            command, env=environment, cwd=TESTS, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
        )
