"""Runs our own tests of a pair on a release's own classes: its Python sources before the installed vLLM on the path.

Its compiled extension isn't there, so nothing computes; the connector's classes, which are Python, are all its own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from connector.engine.versions import RELEASES
from tests.contract.releases.manifest import order_of
from tests.contract.releases.report import say

FOLDER = Path(__file__).parents[1]
TESTS = (
    "test_pair.py",
    "test_aborted_pulls.py",
    "test_failed_pulls.py",
    "test_late_pulls.py",
    "test_contained_faults.py",
)
"""Two engines on vLLM's own schedulers, cache managers and worker halves; every token's KV is checked."""

TESTS_OF_CACHE_GROUPS = ("test_cache_groups.py",)
"""What windows and states give, against an oracle; where such models reuse KV at all."""

NO_SUCH_BEHAVIOUR = {
    "test_late_pulls.py::test_a_peer_stays_connected_while_a_late_read_of_it_goes_on": "0.31.0",
}
"""Not run before that release: what they are about isn't there. A replaced peer is never dropped before 0.31."""

CHECKOUT = Path(__file__).parents[3]
RUN_SECONDS = 1200


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
        path = os.pathsep.join((str(self._root), str(CHECKOUT)))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "tests.contract.releases.stand_ins", *TESTS]
        command += TESTS_OF_CACHE_GROUPS if RELEASES[self._version].spares_last_tokens else ()
        for test, since in NO_SUCH_BEHAVIOUR.items():
            if order_of(self._version) < order_of(since):
                command += ["--deselect", test]
        return subprocess.run(
            command, env=environment, cwd=FOLDER, capture_output=True, text=True, timeout=RUN_SECONDS, check=False
        )
