"""Ends what an earlier run of this program left behind, then becomes it: ``python -m deploy.local.sole <command>``.

A killed vLLM server leaves its engine core and worker behind, holding ports and memory that the next one needs. They
are found by their environment: the run directory's mark, and the program name that supervisord sets.
"""

import os
import sys

from deploy.local.leftovers import PROGRAM_NAME, SUPERVISED_BY, kill_marked


def main(command: list[str]) -> None:
    marks = {name: os.environ[name] for name in (SUPERVISED_BY, PROGRAM_NAME)}
    if num_killed := kill_marked(marks):
        print(f"killed {num_killed} processes that an earlier run had left", file=sys.stderr, flush=True)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
