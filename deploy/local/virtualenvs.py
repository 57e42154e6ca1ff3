"""The two Python environments, made from the hashed locks and left alone while the locks are unchanged.

vLLM pins much of what it imports, so the engines have an environment of their own, and torch is installed there first:
its CPU build has a version (``+cpu``) that the usual index doesn't carry.
"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from deploy.local.commands import run_logged
from deploy.local.console import Console, StackError
from deploy.local.environment import Options
from deploy.local.stamps import digest_of, is_current, write_stamp

TORCH = "torch==2.13.0+cpu"
UNWANTED_BESIDE_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""The builds that pip picks for vLLM fail to import beside the CPU torch, and transformers trips over them."""

INSTALL = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "install")
STAMP = "backhaul-stamp"
MAIN_LOCK = "requirements/main.txt"
ENGINE_LOCK = "requirements/engine-cpu.txt"


def prepare_main(options: Options, console: Console) -> None:
    lock = options.layout.root / MAIN_LOCK
    environment = Virtualenv(options, options.layout.main_venv, lock)
    if environment.is_current():
        return
    with console.step("environment .venv", "installing control plane, agent, router"):
        environment.create()
        environment.install("--require-hashes", "--requirement", lock)
        environment.finish()


def prepare_torch(options: Options, console: Console) -> None:
    """First of all, so that a machine that finds no CPU build is told so within seconds."""
    environment = _engine_environment(options)
    if environment.is_current():
        return
    with console.step("environment .venv-engine", f"installing {TORCH}"):
        environment.create()
        install_torch(environment, options.torch_index_url)


def prepare_engine(options: Options, console: Console) -> None:
    """After ``prepare_torch``."""
    environment = _engine_environment(options)
    if environment.is_current():
        return
    lock = options.layout.root / ENGINE_LOCK
    with console.step("environment .venv-engine", "installing vLLM for CPU and NIXL, about 4 GB"):
        environment.install("--require-hashes", "--no-deps", "--requirement", lock)
        environment.run("-m", "pip", "--quiet", "uninstall", "--yes", *UNWANTED_BESIDE_TORCH)
        environment.finish()


def _engine_environment(options: Options) -> "Virtualenv":
    return Virtualenv(options, options.layout.engine_venv, options.layout.root / ENGINE_LOCK)


class Virtualenv:
    """One environment and the stamp that says from which lock it was made."""

    def __init__(self, options: Options, folder: Path, lock: Path) -> None:
        root = options.layout.root
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._root = root
        self._log = options.layout.log(f"setup-{folder.name.lstrip('.')}")
        self._digest = digest_of([lock], project_metadata(root), str(root))

    def is_current(self) -> bool:
        return is_current(self.folder / STAMP, self._digest) and self._works()

    def create(self) -> None:
        """Keeps an environment that works, so that a changed lock installs only the difference."""
        if self._works():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        run_logged(
            [sys.executable, "-m", "venv", self.folder], self._log, what=f"making {self.folder}", directory=self._root
        )

    def install(self, *arguments: str | Path) -> None:
        self.run(*INSTALL, *arguments)

    def finish(self) -> None:
        """Installs the checkout itself, editable: a new process runs the sources as they are."""
        self.install("--no-deps", "--no-build-isolation", "--editable", self._root)
        write_stamp(self.folder / STAMP, self._digest)

    def run(self, *arguments: str | Path) -> None:
        run_logged(
            [self.python, *arguments], self._log, what=f"installing into {self.folder.name}", directory=self._root
        )

    def _works(self) -> bool:
        try:
            return subprocess.run([self.python, "-c", ""], check=False, capture_output=True).returncode == 0
        except OSError:
            return False


def install_torch(environment: Virtualenv, index_url: str) -> None:
    """From wherever pip is set up to look, and from the operator's index when one is named."""
    extra: Sequence[str] = ("--extra-index-url", index_url) if index_url else ()
    try:
        environment.install("--no-deps", *extra, TORCH)
    except StackError as error:
        if "No matching distribution" not in str(error):
            raise
        raise StackError(
            f"no CPU build of torch ({TORCH}) was found for Python {sys.version_info.major}.{sys.version_info.minor}; "
            "set BACKHAUL_TORCH_INDEX_URL to a package index that has it, such as PyTorch's own index of CPU wheels."
        ) from None


def project_metadata(root: Path) -> str:
    """The parts of pyproject.toml that an installation depends on, not the settings of its tools."""
    parsed = tomllib.loads((root / "pyproject.toml").read_text())
    return json.dumps([parsed["build-system"], parsed["project"]], sort_keys=True)


def child_environment() -> dict[str, str]:
    """This process' environment without what would leak into children: our own variables and Python's."""
    dropped = ("BACKHAUL_", "DJANGO_", "PYTHON", "VLLM_", "VIRTUAL_ENV", "MAKE", "MFLAGS")
    return {
        name: value for name, value in os.environ.items() if not name.startswith(dropped) and name not in ("P", "D")
    }
