"""Rules of the tree that no linter knows: sizes, names, and what a test may not do."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("connector", "controlplane", "deploy")
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 50
BANNED_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|misc|managers?)(_|$)")

WIRING = {"apps", "urls", "login_urls", "receiver_urls", "routing"}
"""Django's tables of names, which say all by their lines."""


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if "migrations" not in path.parts]
    assert found
    return sorted(found)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", sources(*PACKAGES, "tests"), ids=relative)
def test_file_is_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) < MAX_FILE_LINES


def test_functions_stay_below_the_cap() -> None:
    long = [
        f"{relative(path)}:{node.lineno} {node.name}"
        for path in sources(*PACKAGES)
        for node in functions(path)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert not long


def test_modules_are_named_for_what_they_hold() -> None:
    assert not [relative(path) for path in sources(*PACKAGES, "tests") if BANNED_NAMES.search(path.stem)]


def test_every_module_says_what_it_guarantees() -> None:
    undocumented = [
        relative(path)
        for path in sources(*PACKAGES)
        if path.stem not in WIRING and path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not undocumented


def test_nothing_is_imported_by_star_or_left_to_do() -> None:
    pattern = re.compile(r"^from \S+ import \*|\b(TODO|FIXME|XXX)\b", re.MULTILINE)
    assert not [relative(path) for path in sources(*PACKAGES) if pattern.search(path.read_text())]


def test_tests_neither_sleep_nor_skip() -> None:
    banned = {
        "time.sleep",
        "pytest.skip",
        "pytest.xfail",
        "pytest.mark.skip",
        "pytest.mark.skipif",
        "pytest.mark.xfail",
    }
    offenders = [
        f"{relative(path)}:{node.lineno} {ast.unparse(node)}"
        for path in sources("tests")
        if path.name.startswith(("test_", "conftest"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in banned
    ]
    assert not offenders


@pytest.mark.parametrize("name", ["requirements/main.txt", "requirements/engine-cpu.txt", "frontend/package-lock.json"])
def test_locks_name_no_registry(name: str) -> None:
    lock = (ROOT / name).read_text()
    assert not re.search(r'"resolved": "http|--(extra-)?index-url|--find-links', lock)
    assert "sha256:" in lock or "sha512-" in lock
