"""``python -m connector.signing``: shows and changes the keys of a fleet key file; prints key ids, never secrets."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from connector.signing import operate

EXIT_REFUSED = 2


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m connector.signing", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("list", "the key ids; the first signs"),
        ("rotate", "a new key that signs at once (all engines and routers read this one file)"),
        ("stage", "a new key that only verifies (the file is copied to several hosts: copy it, then promote)"),
        ("promote", "makes a key of the file the one that signs"),
        ("remove", "takes an old key out, one TTL after another one signs"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("file", type=Path)
        if name in ("promote", "remove"):
            command.add_argument("key_id")
    return parser


def main(argv: Sequence[str]) -> int:
    """0, or 2 with one sentence when the file or the request can't be used."""
    given = build_parser().parse_args(argv)
    try:
        _run(given)
        sys.stdout.write("".join(f"{line}\n" for line in _lines(operate.key_ids(given.file))))
    except OSError as error:
        sys.stderr.write(f"{given.file} can't be used ({error.strerror}).\n")
        return EXIT_REFUSED
    except ValueError as error:
        sys.stderr.write(f"{error}.\n")
        return EXIT_REFUSED
    return 0


def _run(given: argparse.Namespace) -> None:
    match given.command:
        case "rotate":
            operate.rotate(given.file)
        case "stage":
            operate.stage(given.file)
        case "promote":
            operate.promote(given.file, given.key_id)
        case "remove":
            operate.remove(given.file, given.key_id)


def _lines(key_ids: Sequence[str]) -> list[str]:
    return [f"{key_id} {'signs' if index == 0 else 'verifies'}" for index, key_id in enumerate(key_ids)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
