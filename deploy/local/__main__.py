"""Command line of the one-machine stack: ``python3 -m deploy.local up | prepare | status | logs [name] | down``."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this line is read by the Python that the machine happens to have
    sys.exit("backhaul: Python 3.11 or newer is needed, not " + sys.version.split()[0] + "; set PYTHON=python3.11")

import argparse
import os
from pathlib import Path

from deploy.local.console import Console, StackError
from deploy.local.environment import Options, read_options
from deploy.local.start import prepare, up
from deploy.local.status import logs, status
from deploy.local.stop import down

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m deploy.local", description=__doc__)
    parser.add_argument("command", choices=("up", "prepare", "status", "logs", "down"))
    parser.add_argument("name", nargs="?", default="", help="with logs: the part whose log is wanted")
    arguments = parser.parse_args()
    console = Console(sys.stdout)
    try:
        return run(arguments.command, arguments.name, read_options(os.environ, ROOT), console)
    except StackError as error:
        print(f"backhaul: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("backhaul: interrupted; make up goes on from here, make down stops what runs", file=sys.stderr)
        return 130


def run(command: str, name: str, options: Options, console: Console) -> int:
    """The process' exit code."""
    if command == "up":
        up(options, console)
    elif command == "prepare":
        prepare(options, console)
    elif command == "down":
        down(options.layout, console)
    elif command == "logs":
        logs(options.layout, name)
    else:
        return 0 if status(options.layout, console) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
