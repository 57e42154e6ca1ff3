"""``vllm-router`` from its wheel, in a virtual environment of its own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
VERSION = "0.1.17"
FOLDER = ROOT / ".venv-peer"


def installed() -> Path:
    """The program, installed first where it isn't there in this version."""
    program, stamp = FOLDER / "bin" / "vllm-router", FOLDER / f"vllm-router-{VERSION}"
    if not stamp.exists():
        print(f"Installing vllm-router {VERSION} into {FOLDER.name} …", flush=True)  # noqa: T201
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        pip = [str(FOLDER / "bin" / "python"), "-m", "pip", "install", "--quiet", f"vllm-router=={VERSION}"]
        subprocess.run(pip, check=True)
        stamp.touch()
    return program


def command(program: Path, port: int, metrics_port: int, prefill_url: str, decode_url: str) -> list[str]:
    """With its own defaults but for where it listens."""
    options = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port)]
    return [str(program), "--vllm-pd-disaggregation", "--prefill", prefill_url, "--decode", decode_url, *options]
