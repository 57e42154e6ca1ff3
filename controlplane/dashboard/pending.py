"""What changed since a dashboard's last frame, in bounded memory. Pure."""

from collections.abc import Iterable

import msgspec

MAX_IDS_PER_KIND = 300
"""Above it a kind is read as a list again: the lists are shorter than that anyway."""


class Changes(msgspec.Struct, frozen=True):
    """Ids to read again by kind; ``None`` means that the kind's whole list is to be read."""

    ids: dict[str, frozenset[str] | None]

    def __bool__(self) -> bool:
        return bool(self.ids)


class PendingChanges:
    """Collects ids until they are taken; repeated ids cost nothing, and too many of a kind collapse into one mark."""

    def __init__(self, max_ids_per_kind: int = MAX_IDS_PER_KIND) -> None:
        self._max_ids = max_ids_per_kind
        self._ids: dict[str, set[str] | None] = {}

    def add(self, kind: str, ids: Iterable[str]) -> None:
        known = self._ids.setdefault(kind, set())
        if known is None:
            return
        known.update(ids)
        if len(known) > self._max_ids:
            self._ids[kind] = None

    def take(self) -> Changes:
        """Everything collected so far; the next call starts empty."""
        taken = Changes({kind: None if ids is None else frozenset(ids) for kind, ids in self._ids.items()})
        self._ids = {}
        return taken

    @property
    def num_marks(self) -> int:
        """How many changes wait; a collapsed kind counts as one."""
        return sum(1 if ids is None else len(ids) for ids in self._ids.values())
