"""Reads classes and functions of one release out of its Python sources, by syntax tree only."""

import ast
import functools
from pathlib import Path
from typing import NamedTuple

CONNECTORS = "vllm/distributed/kv_transfer/kv_connector/v1"


class Place(NamedTuple):
    """A class, or a module where ``owner`` is empty. ``path`` is relative to the folder that holds ``vllm``."""

    path: str
    owner: str = ""


class Sources:
    """One unpacked release below ``root``. What isn't there is ``None`` or empty, not an error."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees: dict[str, ast.Module | None] = {}

    def tree(self, path: str) -> ast.Module | None:
        if path not in self._trees:
            file = self._root / path
            self._trees[path] = without_docstrings(ast.parse(file.read_text())) if file.is_file() else None
        return self._trees[path]

    def body(self, place: Place) -> list[ast.stmt]:
        module = self.tree(place.path)
        if module is None or not place.owner:
            return module.body if module is not None else []
        return next((node.body for node in flat(module.body) if is_class(node, place.owner)), [])  # type: ignore[attr-defined]

    def has(self, place: Place) -> bool:
        return bool(self.body(place))

    def function(self, places: tuple[Place, ...], name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The first definition in this order, which is that of the classes' inheritance."""
        for place in places:
            for node in flat(self.body(place)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                    return node
        return None

    def text(self, places: tuple[Place, ...], name: str) -> str:
        """As ``ast.unparse`` writes it: one line a statement, single quotes, no comments. Unnamed: the whole place."""
        if not name:
            return "\n".join(ast.unparse(node) for place in places for node in self.body(place))
        found = self.function(places, name)
        return ast.unparse(found) if found is not None else ""


def flat(nodes: list[ast.stmt]) -> list[ast.stmt]:
    """Also what stands under a module's or class's own conditions."""
    found: list[ast.stmt] = []
    for node in nodes:
        found.append(node)
        if isinstance(node, ast.If | ast.Try):
            found += flat([*node.body, *node.orelse])
    return found


def is_class(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == name


def without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]  # has one, as was just seen
    return tree


@functools.cache
def parameter_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    names += [f"*{given.vararg.arg}"] if given.vararg else []
    names += [argument.arg for argument in given.kwonlyargs]
    return (*names, *([f"**{given.kwarg.arg}"] if given.kwarg else []))


def names_bound_in(nodes: list[ast.stmt]) -> set[str]:
    """Names that a module or class body defines, assigns, annotates or imports."""
    found: set[str] = set()
    for node in flat(nodes):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


def attributes_set_in(function: ast.AST) -> set[str]:
    """``self.x = …`` and ``self.x: T = …`` anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(function):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                found.add(target.attr)
    return found


def keys_used_in(function: ast.AST, names: tuple[str, ...]) -> set[str]:
    """String keys that are read from, written to or looked for in these dicts, or given to ``dict(…)``."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and _is_named(node.value, names) and _is_text(node.slice):
            found.add(node.slice.value)  # type: ignore[attr-defined]
        elif isinstance(node, ast.Call) and _is_named(getattr(node.func, "value", None), names):
            found |= {argument.value for argument in node.args[:1] if _is_text(argument)}  # type: ignore[attr-defined]
        elif isinstance(node, ast.Call) and _is_named(node.func, ("dict",)):
            found |= {keyword.arg for keyword in node.keywords if keyword.arg}
        elif isinstance(node, ast.Tuple) and node.elts and all(map(_is_text, node.elts)):
            found |= {element.value for element in node.elts}  # type: ignore[attr-defined]
    return found


def _is_named(node: ast.AST | None, names: tuple[str, ...]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
