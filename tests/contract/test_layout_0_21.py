"""Our classes on the class layout of vLLM 0.21.0: hand-written fakes of it, which can't drift from the real one.

They run in a process of their own, since a process has one vLLM. ``make seams ARGS=--run`` runs the tests of a pair on
the real classes of each release.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.releases import fixtures
from tests.contract.releases.core_seams import HOOKS
from tests.contract.releases.nixl_seams import NIXL_SEAMS
from tests.contract.releases.seam import Seam
from tests.contract.releases.sources import Sources

FAKES = Path(__file__).parent / "fake_vllm_0_21"
CHECKOUT = Path(__file__).parents[2]
NOT_FAKED = ("module path",)
"""vLLM's way of loading a connector by its path: the tests import ours themselves."""
SECONDS = 120


SEAMS = [seam for seam in (*NIXL_SEAMS, *HOOKS) if seam.key not in NOT_FAKED]


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.key)
def test_the_fakes_are_as_the_real_release(seam: Seam) -> None:
    assert seam.read(Sources(FAKES)) == fixtures.load("0.21.0")[seam.key]


def test_our_classes_work_on_that_layout() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(FAKES), str(CHECKOUT)))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FAKES / "on_this_layout.py")]
    done = subprocess.run(
        command, env=environment, cwd=FAKES, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
