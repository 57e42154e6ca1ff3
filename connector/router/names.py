"""Small numbers for the few names that very many rows repeat: tenants, engines and their incarnations."""

from collections.abc import Hashable
from typing import Generic, TypeVar

N = TypeVar("N", bound=Hashable)


class Names(Generic[N]):
    """Counts its users, and forgets a name with the last of them. Number 0 is no name."""

    __slots__ = ("_counts", "_free", "_names", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[N, int] = {}
        self._names: list[N | None] = [None]
        self._counts: list[int] = [0]
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, name: N) -> int:
        """The name's number, with one user more."""
        number = self._numbers.get(name)
        if number is None:
            number = self._free.pop() if self._free else len(self._names)
            if number == len(self._names):
                self._names.append(None)
                self._counts.append(0)
            self._numbers[name], self._names[number] = number, name
        self._counts[number] += 1
        return number

    def drop(self, number: int) -> bool:
        """One user less; true if it was the last. Dropping 0 does nothing."""
        if not number:
            return False
        self._counts[number] -= 1
        if self._counts[number]:
            return False
        name = self._names[number]
        if name is not None:
            del self._numbers[name]
        self._names[number] = None
        self._free.append(number)
        return True

    def name(self, number: int) -> N | None:
        return self._names[number]

    def items(self) -> list[tuple[int, N, int]]:
        """Number, name and users of each."""
        return [(number, name, self._counts[number]) for name, number in self._numbers.items()]
