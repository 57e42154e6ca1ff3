"""How ``make seams`` speaks: a line at a time, at once."""

import sys


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
