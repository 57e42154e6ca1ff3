"""What the sources import is what the locks install, and not what happens to lie in an environment."""

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWN = {"connector", "controlplane", "deploy", "tests"}
OF_THE_ENGINES = {"vllm", "torch", "nixl", "numpy", "transformers", "tokenizers"}
"""Installed in the engines' environment only, and imported by nothing else (see the import contracts)."""


def locked(lock: str) -> set[str]:
    lines = (ROOT / lock).read_text().splitlines()
    return {normal(line.partition("==")[0]) for line in lines if re.match(r"[a-z0-9]", line)}


def normal(name: str) -> str:
    """PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_modules() -> set[str]:
    found = set()
    for folder in OWN:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.partition(".")[0])
    return found - OWN - sys.stdlib_module_names - {"__future__"}


def test_every_import_is_locked() -> None:
    distributions = importlib.metadata.packages_distributions()
    packages = locked("requirements/main.txt")
    missing = {
        module
        for module in imported_modules() - OF_THE_ENGINES
        if not {normal(name) for name in distributions.get(module, [])} & packages
    }
    siblings = {path.stem for path in (ROOT / "tests").rglob("*.py")}
    assert not missing - siblings


def test_installed_versions_are_the_locked_ones() -> None:
    wanted = dict(re.findall(r"(?m)^([a-zA-Z0-9._-]+)==(\S+)", (ROOT / "requirements/main.txt").read_text()))
    installed = {normal(found.name): found.version for found in importlib.metadata.distributions()}
    differing = {
        name: (installed[normal(name)], version)
        for name, version in wanted.items()
        if normal(name) in installed and installed[normal(name)] != version
    }
    assert not differing
