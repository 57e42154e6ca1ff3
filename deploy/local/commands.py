"""Runs a program with its output in a log file; a failure is one sentence that quotes what the program said last."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.local.console import StackError

MAX_QUOTED_CHARS = 300


def run_logged(
    command: Sequence[str | Path],
    log: Path,
    *,
    what: str,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    timeout_seconds: float = 1800,
) -> str:
    """What the program printed. Raises ``StackError`` when it can't be run, fails or takes too long."""
    with log.open("ab") as output:
        output.write(f"$ {' '.join(map(str, command))}\n".encode())
        output.flush()
        offset = output.tell()
        try:
            code = subprocess.run(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=environment,
                timeout=timeout_seconds,
                check=False,
            ).returncode
        except FileNotFoundError:
            raise StackError(f"{what} failed: the program {command[0]} is missing.") from None
        except subprocess.TimeoutExpired:
            raise StackError(f"{what} took longer than {timeout_seconds:.0f} s; its output is in {log}.") from None
    printed = log.read_bytes()[offset:].decode(errors="replace")
    if code != 0:
        raise StackError(f"{what} failed: {last_words(printed)} (all of its output: {log})")
    return printed


def last_words(printed: str) -> str:
    """The last line that names an error, else the last line that isn't blank."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    chosen = (telling or lines or ["it printed nothing"])[-1]
    return chosen if len(chosen) <= MAX_QUOTED_CHARS else f"{chosen[:MAX_QUOTED_CHARS]}…"
