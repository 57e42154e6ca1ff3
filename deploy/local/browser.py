"""Chromium for the page's tests: installed by apt when root, asked for otherwise."""

import os
import shutil
from pathlib import Path

from deploy.local.commands import run_logged
from deploy.local.console import Console, StackError
from deploy.local.environment import Options

CHROMIUM = Path("/usr/bin/chromium")


def prepare(options: Options, console: Console) -> None:
    if CHROMIUM.exists():
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise StackError(f"the page's tests need {CHROMIUM}; run: sudo apt-get install chromium")
    options.layout.create()
    with console.step("chromium", "installing it for the page's tests"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (("update",), ("install", "--yes", "--no-install-recommends", "chromium")):
            run_logged(
                ["apt-get", *arguments],
                options.layout.log("setup-chromium"),
                what=f"apt-get {arguments[0]}",
                directory=Path("/"),
                environment=environment,
            )
