"""Which values hold where: pure, from the newest revision of each scope.

Scopes from wide to narrow: fleet, model, role, engine, tenant, session. The narrowest scope that sets a field wins.
"""

import re

import msgspec

from connector.protocol import PolicyPatch, PolicyValues, Role

FLEET = "fleet"
KINDS = (FLEET, "model", "role", "engine", "tenant", "session")
MAX_SUBJECT_CHARS = 200
_ENGINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SUBJECT = re.compile(r"[^\s\x00-\x1f\x7f](?:[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?")


class Scope(msgspec.Struct, frozen=True):
    """``fleet``, or a kind and its subject: ``model:Qwen/Qwen3-32B``, ``role:prefill``, ``engine:prefill-0``."""

    kind: str
    subject: str = ""

    def __str__(self) -> str:
        return self.kind if self.kind == FLEET else f"{self.kind}:{self.subject}"


def parse_scope(text: str) -> Scope:
    """The scope, or ``ValueError`` with one sentence."""
    kind, _, subject = text.partition(":")
    if text == FLEET:
        return Scope(FLEET)
    if kind not in KINDS or kind == FLEET:
        raise ValueError(f"scope must be fleet, or one of {', '.join(KINDS[1:])} followed by : and a name")
    if len(subject) > MAX_SUBJECT_CHARS or not _SUBJECT.fullmatch(subject):
        raise ValueError(f"scope {kind} must name a subject of at most {MAX_SUBJECT_CHARS} printable characters")
    if kind == "role" and subject not in list(Role):
        raise ValueError(f"scope role must be one of {', '.join(Role)}")
    if kind == "engine" and not _ENGINE_NAME.fullmatch(subject):
        raise ValueError("scope engine must name an engine: letters, digits, dot, hyphen and underscore")
    return Scope(kind, subject)


class PolicyBook(msgspec.Struct, frozen=True):
    """The policy of the whole fleet at one revision: what each scope sets."""

    number: int
    patches: dict[Scope, PolicyPatch]

    def effective(self, *scopes: Scope) -> PolicyValues:
        """The values where all of ``scopes`` hold, in whatever order they are given; fleet always holds."""
        values = PolicyValues()
        for scope in _wide_to_narrow(scopes):
            if patch := self.patches.get(scope):
                values = patch.apply_to(values)
        return values

    def sources(self, *scopes: Scope) -> dict[str, str]:
        """For each field the scope whose value ``effective`` of the same scopes returns, or ``default``."""
        sources = dict.fromkeys(PolicyValues.__struct_fields__, "default")
        for scope in _wide_to_narrow(scopes):
            patch = self.patches.get(scope, PolicyPatch())
            sources |= {field: str(scope) for field in sources if getattr(patch, field) is not None}
        return sources

    def of_kind(self, kind: str) -> dict[str, PolicyPatch]:
        """Patches by subject; scopes that set nothing (any more) are left out."""
        unset = PolicyPatch()
        return {scope.subject: patch for scope, patch in self.patches.items() if scope.kind == kind and patch != unset}


def _wide_to_narrow(scopes: tuple[Scope, ...]) -> list[Scope]:
    return sorted({Scope(FLEET), *scopes}, key=lambda scope: KINDS.index(scope.kind))


def engine_scopes(*, name: str, model: str, role: str) -> tuple[Scope, ...]:
    """The scopes that an engine is in; model and role may be unknown yet."""
    scopes = [Scope("engine", name)]
    if model:
        scopes.append(Scope("model", model))
    if role:
        scopes.append(Scope("role", role))
    return tuple(scopes)


def merge_patch(base: PolicyPatch, changes: dict[str, object]) -> PolicyPatch:
    """``base`` with ``changes`` laid over it; ``None`` gives a field back to the wider scope.

    Raises ``msgspec.ValidationError`` for a value out of bounds. Unknown fields are the caller's to refuse.
    """
    return msgspec.convert({**msgspec.to_builtins(base), **changes}, PolicyPatch)


def diff_patches(before: PolicyPatch, after: PolicyPatch) -> list[dict[str, object]]:
    """The fields that changed, as ``{"field", "before", "after"}``; ``None`` means inherited."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
    return [
        {"field": field, "before": old.get(field), "after": new.get(field)}
        for field in PolicyPatch.__struct_fields__
        if old.get(field) != new.get(field)
    ]


def drifted_fields(expected: PolicyValues, actual: PolicyValues) -> tuple[str, ...]:
    """The fields in which what an enforcer read back differs from what it was told."""
    return tuple(
        field for field in PolicyValues.__struct_fields__ if getattr(expected, field) != getattr(actual, field)
    )
