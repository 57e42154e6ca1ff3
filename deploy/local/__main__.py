"""Command line of the one-machine stack; the Makefile's targets call it with a bare Python."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this line is read by the Python that the machine happens to have
    sys.exit("backhaul: Python 3.11 or newer is needed, not " + sys.version.split()[0] + "; set PYTHON=python3.11")

import argparse
import os
from pathlib import Path

from deploy.local import browser, frontend
from deploy.local.console import Console, StackError
from deploy.local.environment import Options, read_options
from deploy.local.start import prepare, up
from deploy.local.status import logs, status
from deploy.local.stop import down

ROOT = Path(__file__).resolve().parents[2]

COMMANDS = {
    "up": "makes what is missing, starts the stack, and returns when every part works",
    "prepare": "makes environments, model and page, and starts nothing",
    "status": "prints how each part is; exits with 1 unless all work",
    "logs": "follows the logs, or that of one part",
    "down": "stops what was started",
    "browser": "installs Chromium for the page's tests",
    "npm": "runs npm in frontend/ with the Node that builds the page",
}


def main() -> int:
    arguments = parsed(sys.argv[1:])
    console = Console(sys.stdout)
    try:
        return run(arguments.command, arguments.words, read_options(os.environ, ROOT), console)
    except StackError as error:
        print(f"backhaul: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (head, a closed pager) has seen enough; Python would complain again while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("backhaul: interrupted; make up goes on from here, make down stops what runs", file=sys.stderr)
        return 130


def parsed(words: list[str]) -> argparse.Namespace:
    table = "\n".join(f"  {name:8} {what}" for name, what in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python3 -m deploy.local", epilog=table, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=COMMANDS, metavar="command")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="the part whose log is wanted, or npm's arguments")
    return parser.parse_args(words)


def run(command: str, words: list[str], options: Options, console: Console) -> int:
    """The process' exit code."""
    match command:
        case "up":
            up(options, console)
        case "prepare":
            prepare(options, console)
        case "down":
            down(options.layout, console)
        case "status":
            return 0 if status(options.layout, console) else 1
        case "logs":
            logs(options.layout, words[0] if words else "")
        case "browser":
            browser.prepare(options, console)
        case "npm":
            return frontend.Npm(options.layout).run_here(words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
