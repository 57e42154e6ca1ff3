"""What a running process takes anew from its files: the last content that could be trusted is in force."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

REFRESH_SECONDS = 1.0

log = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """Whoever acts on one request reads ``current`` once."""

    @property
    def current(self) -> T_co: ...


class Fixed(Generic[T]):
    """Never changes."""

    def __init__(self, value: T) -> None:
        self.current = value

    def __repr__(self) -> str:
        return "Fixed(...)"


class Refreshed(Protocol):
    """``what`` it is, in one or two words."""

    what: str

    @property
    def is_refused(self) -> bool: ...

    def refresh(self) -> bool:
        """True when something else is in force now. Doesn't raise."""


class LiveFiles(Generic[T]):
    """``load`` makes one value of the files. It raises ``ValueError`` or ``OSError``, at construction too; later a file
    that it refuses is told once, as an error without its content, and changes nothing.

    One thread or task calls ``refresh``; any may read ``current``. ``on_change`` is called in the refreshing thread.
    """

    def __init__(self, what: str, paths: Iterable[Path], load: Callable[[], T]) -> None:
        self.what = what
        self.on_change: Callable[[T], None] | None = None
        self._paths = tuple(paths)
        self._load = load
        self._complaint = ""
        self._seen = self._identity()
        self._current = load()

    @property
    def current(self) -> T:
        return self._current

    @property
    def is_refused(self) -> bool:
        """The files as they are now can't be used."""
        return bool(self._complaint)

    def __repr__(self) -> str:
        return f"LiveFiles({self.what})"

    def refresh(self) -> bool:
        """Costs a ``stat`` of each file while they are as they were. Their identity is taken before their content, so
        that files replaced in between are read again the next time."""
        try:
            identity = self._identity()
            if identity == self._seen and not self._complaint:
                return False
            self._seen = identity
            value = self._load()
        except (OSError, ValueError) as error:
            self._complain(error)
            return False
        self._complaint = ""
        if value == self._current:
            return False
        self._current = value
        log.info("event=reloaded what=%s", self.what)
        if self.on_change is not None:
            self.on_change(value)
        return True

    def _identity(self) -> tuple[int, ...]:
        """Changes with every write and every replacement of a file, and with its mode."""
        facts = [path.stat() for path in self._paths]
        return tuple(
            n for one in facts for n in (one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns)
        )

    def _complain(self, error: OSError | ValueError) -> None:
        why = f"{error.filename} cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
        if why != self._complaint:
            self._complaint = why
            log.error("event=reload_refused what=%s error=%s; what was read before stays in force", self.what, why)


async def follow(files: Iterable[Refreshed], hurry: asyncio.Event) -> None:
    """Never returns. Looks once a second, and at once when ``hurry`` is set; a disk that hangs holds up a thread and no
    turn."""
    followed = tuple(files)
    while True:
        try:
            await asyncio.wait_for(hurry.wait(), REFRESH_SECONDS)
            hurry.clear()
            log.info("event=reload_asked")
        except TimeoutError:
            pass
        for one in followed:
            await asyncio.to_thread(one.refresh)
