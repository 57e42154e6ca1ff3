"""How the environments are made: what triggers a new installation, and what a missing CPU torch says."""

from pathlib import Path

import pytest

from deploy.local.console import StackError
from deploy.local.environment import Options
from deploy.local.virtualenvs import TORCH, Virtualenv, child_environment, install_torch, project_metadata

PYPROJECT = """
[build-system]
requires = ["setuptools"]
[project]
name = "x"
version = "{version}"
[tool.ruff]
line-length = {length}
"""


class FakeEnvironment(Virtualenv):
    """Records what pip is asked for, and fails as told."""

    def __init__(self, failure: str = "") -> None:
        self.asked: list[tuple[str | Path, ...]] = []
        self._failure = failure

    def install(self, *arguments: str | Path) -> None:
        self.asked.append(arguments)
        if self._failure:
            raise StackError(self._failure)


def test_torch_is_sought_where_pip_looks_and_on_the_operators_index() -> None:
    environment = FakeEnvironment()
    install_torch(environment, "")
    install_torch(environment, "https://wheels.example/cpu")
    assert environment.asked == [
        ("--no-deps", TORCH),
        ("--no-deps", "--extra-index-url", "https://wheels.example/cpu", TORCH),
    ]


def test_missing_cpu_build_says_how_to_name_an_index() -> None:
    environment = FakeEnvironment("failed: ERROR: No matching distribution found for torch==2.13.0+cpu")
    with pytest.raises(StackError, match=r"^no CPU build of torch .* set BACKHAUL_TORCH_INDEX_URL to a package index"):
        install_torch(environment, "")


def test_other_failures_of_pip_are_told_as_they_are() -> None:
    with pytest.raises(StackError, match=r"^No space left on device$"):
        install_torch(FakeEnvironment("No space left on device"), "")


def test_settings_of_tools_do_not_ask_for_a_new_installation(tmp_path: Path) -> None:
    def metadata(version: str, length: int) -> str:
        (tmp_path / "pyproject.toml").write_text(PYPROJECT.format(version=version, length=length))
        return project_metadata(tmp_path)

    assert metadata("1", 100) == metadata("1", 120)
    assert metadata("1", 100) != metadata("2", 100)


def test_children_inherit_neither_our_variables_nor_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BACKHAUL_RUN_DIR", "PYTHONPATH", "DJANGO_SETTINGS_MODULE", "VLLM_API_KEY", "MAKEFLAGS", "P", "D"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("PIP_CERT", "/ca")
    inherited = child_environment()
    assert inherited["PIP_CERT"] == "/ca"
    assert not {"BACKHAUL_RUN_DIR", "PYTHONPATH", "DJANGO_SETTINGS_MODULE", "VLLM_API_KEY", "MAKEFLAGS"} & set(
        inherited
    )
    assert not {"P", "D"} & set(inherited)


def test_environment_that_does_not_run_is_not_current(options: Options, tmp_path: Path) -> None:
    options.layout.create()
    environment = Virtualenv(options, tmp_path / "venv", options.layout.root / "requirements" / "main.txt")
    assert not environment.is_current()
