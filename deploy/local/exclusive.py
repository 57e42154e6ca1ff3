"""One launcher at a time works on a run directory."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from deploy.local.console import StackError
from deploy.local.layout import Layout


@contextmanager
def only_launcher(layout: Layout) -> Iterator[None]:
    """Raises ``StackError`` at once while another ``make up`` or ``make down`` is at work."""
    with layout.lock_file.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            raise StackError(f"another make up or make down (pid {holder}) is at work; wait for it.") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
