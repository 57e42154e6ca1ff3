"""One seam: where it is, what is read of it, and what of ours depends on it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tests.contract.releases.sources import (
    Place,
    Sources,
    attributes_set_in,
    keys_used_in,
    names_bound_in,
    parameter_names,
)

Value = bool | list[str] | None
"""``None`` or ``False``: it isn't there. Lists are of parameters in order, or of the names that are there, sorted."""


class Seam(Protocol):
    """``key`` names it in fixtures and messages; ``used_by`` completes 'used for …'."""

    @property
    def key(self) -> str: ...
    @property
    def places(self) -> tuple[Place, ...]: ...
    @property
    def used_by(self) -> str: ...
    def read(self, sources: Sources) -> Value: ...


@dataclass(frozen=True)
class Signature:
    """Parameters of a method or function, by the first class that defines it."""

    key: str
    places: tuple[Place, ...]
    name: str
    used_by: str

    def read(self, sources: Sources) -> Value:
        found = sources.function(self.places, self.name)
        return list(parameter_names(found)) if found is not None else None


@dataclass(frozen=True)
class Names:
    """Which of these fields, methods, members, imports or constants the class or module has."""

    key: str
    places: tuple[Place, ...]
    names: tuple[str, ...]
    used_by: str

    def read(self, sources: Sources) -> Value:
        found = set[str]().union(*(names_bound_in(sources.body(place)) for place in self.places))
        return sorted(found.intersection(self.names))


@dataclass(frozen=True)
class State:
    """Which of these attributes its methods set on ``self``, or its class body declares."""

    key: str
    places: tuple[Place, ...]
    names: tuple[str, ...]
    used_by: str

    def read(self, sources: Sources) -> Value:
        found: set[str] = set()
        for place in self.places:
            body = sources.body(place)
            found |= names_bound_in(body).union(*map(attributes_set_in, body))
        return sorted(found.intersection(self.names))


@dataclass(frozen=True)
class Keys:
    """Which of these keys of ``kv_transfer_params`` the methods use."""

    key: str
    places: tuple[Place, ...]
    methods: tuple[str, ...]
    names: tuple[str, ...]
    used_by: str

    def read(self, sources: Sources) -> Value:
        functions = [sources.function(self.places, method) for method in self.methods]
        dicts = ("params", "kv_transfer_params")
        found = set[str]().union(*(keys_used_in(function, dicts) for function in functions if function is not None))
        return sorted(found.intersection(self.names))


@dataclass(frozen=True)
class Order:
    """Whether the code holds these snippets, first occurrences in this order. ``name`` empty: the whole place."""

    key: str
    places: tuple[Place, ...]
    name: str
    snippets: tuple[str, ...]
    used_by: str

    def read(self, sources: Sources) -> Value:
        text = sources.text(self.places, self.name)
        positions = [text.find(snippet) for snippet in self.snippets]
        return -1 not in positions and positions == sorted(positions)


@dataclass(frozen=True)
class Holds:
    """Whether the code holds all of these snippets, in any order."""

    key: str
    places: tuple[Place, ...]
    name: str
    snippets: tuple[str, ...]
    used_by: str

    def read(self, sources: Sources) -> Value:
        text = sources.text(self.places, self.name)
        return all(snippet in text for snippet in self.snippets)


def read_all(seams: Iterable[Seam], sources: Sources) -> dict[str, Value]:
    return {seam.key: seam.read(sources) for seam in seams}
