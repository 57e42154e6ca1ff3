"""The fleet key of a running process, which follows its file."""

import logging
from pathlib import Path
from typing import Protocol

from connector.signing.keys import FleetKey

logger = logging.getLogger("vllm.backhaul.signing")


class FleetKeySource(Protocol):
    """Whoever acts on one request reads ``current`` once, so that it sees one snapshot."""

    @property
    def current(self) -> FleetKey: ...

    def refresh(self) -> bool:
        """True when another key is in force now."""


class FleetKeyFile:
    """Holds the last file that could be trusted. Construction raises what ``FleetKey.load`` raises; later nothing does.

    One thread or task calls ``refresh``; any thread may read ``current``, whose assignment is atomic.
    """

    what = "fleet key"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _identity(path)
        self._complaint = ""
        self._current = FleetKey.load(path)

    @property
    def current(self) -> FleetKey:
        return self._current

    @property
    def is_refused(self) -> bool:
        """The file as it is now can't be trusted."""
        return bool(self._complaint)

    def refresh(self) -> bool:
        """True when another key is in force now. Costs one ``stat`` while the file is as it was.

        The identity is taken before the content, so that a file replaced in between is read again the next time.
        """
        try:
            identity = _identity(self._path)
            if identity == self._seen and not self._complaint:
                return False
            self._seen = identity
            key = FleetKey.load(self._path)
        except (OSError, ValueError) as error:
            self._complain(error)
            return False
        self._complaint = ""
        if key == self._current:
            return False
        self._current = key
        logger.info("Fleet key read anew: %s signs, %s verify.", key.active_id, ", ".join(key.key_ids))
        return True

    def _complain(self, error: OSError | ValueError) -> None:
        """Once per fault; says what to do and never what the file holds."""
        why = f"{self._path} cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
        if why != self._complaint:
            self._complaint = why
            logger.error("The new fleet key is refused: %s. The keys read before stay in force.", why)


def _identity(path: Path) -> tuple[int, ...]:
    """Changes with every write and every replacement of the file, and with its mode."""
    facts = path.stat()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
