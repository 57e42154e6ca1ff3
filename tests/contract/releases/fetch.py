"""Brings one release's Python sources here: from the package index, as pip is configured; nothing is installed."""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

DOWNLOAD_SECONDS = 900


class NotDownloadableError(Exception):
    """Says in one line why the release isn't to be had."""


def unpack_release(distribution: str, version: str, target: Path) -> int:
    """The wheel's ``vllm/**/*.py`` below ``target``; returns their number. The wheel itself is not kept."""
    with tempfile.TemporaryDirectory(prefix="vllm-wheel-") as folder:
        wheel = _download(distribution, version, Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
            archive.extractall(target, members)
    return len(members)


def _download(distribution: str, version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary", ":all:", "--dest", str(folder), f"{distribution}=={version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotDownloadableError(f"no answer within {DOWNLOAD_SECONDS} s") from error
    found = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not found:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip found no wheel"]
        raise NotDownloadableError(lines[-1])
    return found[0]
