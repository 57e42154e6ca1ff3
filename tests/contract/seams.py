"""How a seam of another package is looked up, so that a test can name it when it has moved."""

import ast
import functools
import importlib
import inspect
import textwrap
from collections.abc import Sequence
from typing import Any


def found(path: str) -> Any:
    """The object at ``module:Class.member``; fails with the seam's name when it is gone."""
    module_name, _, qualified = path.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise AssertionError(f"seam moved: no module {module_name} ({error})") from error
    for name in filter(None, qualified.split(".")):
        assert hasattr(target, name), f"seam moved: {module_name} has no {qualified} (at {name})"
        target = getattr(target, name)
    return target


def parameters(path: str) -> list[str]:
    return list(inspect.signature(found(path)).parameters)


@functools.cache
def tree(path: str) -> ast.AST:
    """The syntax tree of a module, class or method, without docstrings; a method is found below its decorators."""
    target = found(path)
    owner_path, _, member = path.rpartition(".")
    if ":" not in owner_path:
        return _without_docstrings(ast.parse(textwrap.dedent(inspect.getsource(target))))
    owner = next(kind for kind in found(owner_path).__mro__ if member in vars(kind))
    body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(body, ast.ClassDef)
    method = next(node for node in body.body if isinstance(node, ast.FunctionDef) and node.name == member)
    return _without_docstrings(method)


def _without_docstrings(root: ast.AST) -> ast.AST:
    for node in ast.walk(root):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]  # has one, as was just seen
    return root


@functools.cache
def code(path: str) -> str:
    """Its source as ``ast.unparse`` writes it: no comments, no docstrings, one line a statement, single quotes."""
    return ast.unparse(tree(path))


def assert_has(path: str, *snippets: str) -> None:
    for snippet in snippets:
        assert snippet in code(path), f"seam moved: {path} no longer contains {snippet!r}"


def assert_in_order(path: str, snippets: Sequence[str]) -> None:
    """Each snippet occurs in the code, first occurrences in this order."""
    assert_has(path, *snippets)
    positions = [code(path).find(snippet) for snippet in snippets]
    assert positions == sorted(positions), f"seam moved: {path} has another order than {list(snippets)}"


def calls(path: str, method: str) -> list[ast.Call]:
    """Calls of ``….method(…)`` in the code of ``path``."""
    found_calls = [
        node
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method
    ]
    assert found_calls, f"seam moved: {path} no longer calls {method}"
    return found_calls
