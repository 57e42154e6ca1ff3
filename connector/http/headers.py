"""Header fields as they travel: pairs of bytes, names in lower case, for case means nothing (RFC 9110, 5.1)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar, overload

T = TypeVar("T")

Pairs = list[tuple[bytes, bytes]]

_FORBIDDEN = frozenset(b"\r\n\0")


class Headers(Mapping[str, str]):
    """A read-only view on parsed fields. Names are found in any case; of several equal ones the first counts.

    Values are UTF-8 where they are, and hold lone surrogates in the place of bytes that aren't.
    """

    __slots__ = ("_first", "pairs")

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs
        self._first: dict[bytes, bytes] | None = None

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> "Headers":
        return cls([field(name, value) for name, value in fields.items()])

    def raw(self, name: bytes) -> bytes | None:
        """The first value of a field, its name in lower case."""
        first = self._first
        if first is None:
            first = self._first = dict(reversed(self.pairs))
        return first.get(name)

    def num(self, name: bytes) -> int:
        return [one for one, _ in self.pairs].count(name)

    def __getitem__(self, name: str) -> str:
        value = self.raw(name.lower().encode(errors="surrogateescape"))
        if value is None:
            raise KeyError(name)
        return value.decode(errors="surrogateescape")

    @overload
    def get(self, name: str, /) -> str | None: ...
    @overload
    def get(self, name: str, /, default: str) -> str: ...
    @overload
    def get(self, name: str, /, default: T) -> str | T: ...
    def get(self, name: str, /, default: object = None) -> object:
        value = self.raw(name.lower().encode(errors="surrogateescape"))
        return default if value is None else value.decode(errors="surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return iter({name.decode("latin-1"): None for name, _ in self.pairs})

    def __len__(self) -> int:
        return len({name for name, _ in self.pairs})


def field(name: str, value: str) -> tuple[bytes, bytes]:
    """A field to send. Raises ``ValueError`` for a value that would end the field early."""
    data = value.encode(errors="surrogateescape")
    if not _FORBIDDEN.isdisjoint(data):
        raise ValueError(f"the value of {name} holds a line end")
    return name.lower().encode(), data


def render(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join([b"%b: %b\r\n" % pair for pair in pairs])
