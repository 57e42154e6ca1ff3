"""What a run needs, fetched or made once: vLLM's tests, what they import, and folders for the models they name."""

import shutil
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local.commands import run_logged
from deploy.local.console import Console
from deploy.local.environment import Options
from deploy.local.stamps import digest_of, is_current, write_stamp
from deploy.local.virtualenvs import child_environment

HERE = Path(__file__).parent
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")


@dataclass(frozen=True)
class Suite:
    """``sources``: the folder that holds vLLM's ``tests``; ``site``: packages beside the engines' environment."""

    options: Options

    @property
    def folder(self) -> Path:
        return self.options.layout.run / "vllm-suite"

    @property
    def sources(self) -> Path:
        return self.folder / "sources"

    @property
    def site(self) -> Path:
        return self.folder / "site"

    @property
    def work(self) -> Path:
        """Where the tests run: a hub model's name is a path from here."""
        return self.folder / "work"


def prepare(suite: Suite, console: Console) -> None:
    suite.options.layout.create()
    suite.folder.mkdir(exist_ok=True)
    _once(suite, console, suite.sources, _fetch_sources, "fetching vLLM's source distribution")
    _once(suite, console, suite.site, _install_site, "installing what vLLM's tests import")
    _once(suite, console, suite.work, _make_models, "making folders for the models that vLLM's tests name")


def _once(suite: Suite, console: Console, folder: Path, make: Callable[[Suite], None], what: str) -> None:
    stamp = folder / "stamp"
    lock = suite.options.layout.root / "requirements" / "vllm-suite.txt"
    digest = digest_of([HERE / "sdist.txt", HERE / "local_models.py", HERE / "preparation.py", lock])
    if is_current(stamp, digest):
        return
    with console.step(folder.name, what):
        shutil.rmtree(folder, ignore_errors=True)
        make(suite)
        write_stamp(stamp, digest)


def _fetch_sources(suite: Suite) -> None:
    """By pip, from the index it is set up for, checked by hash; the tests only, and never built."""
    archives = suite.folder / "archive"
    shutil.rmtree(archives, ignore_errors=True)
    wanted = ("--requirement", HERE / "sdist.txt", "--require-hashes", "--no-deps", "--no-binary", ":all:")
    _run(
        suite,
        (*PIP, "download", *wanted, "--no-build-isolation", "--dest", archives),
        "fetching vLLM's source distribution",
        PYTHONPATH=str(HERE / "no_build"),
    )
    (archive,) = archives.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        tests = [member for member in opened if "tests" in Path(member.name).parts[1:2]]
        opened.extractall(archives, members=tests, filter="data")
    (unpacked,) = (path for path in archives.iterdir() if path.is_dir())
    shutil.move(unpacked, suite.sources)
    shutil.rmtree(archives)


def _install_site(suite: Suite) -> None:
    lock = suite.options.layout.root / "requirements" / "vllm-suite.txt"
    wanted = ("--requirement", lock, "--require-hashes", "--no-deps", "--only-binary", ":all:")
    _run(suite, (*PIP, "install", *wanted, "--target", suite.site), "installing what vLLM's tests import")


def _make_models(suite: Suite) -> None:
    suite.work.mkdir()
    _run(suite, (HERE / "local_models.py", suite.work), "making model folders", HF_HUB_OFFLINE="1")


def _run(suite: Suite, command: Sequence[str | Path], what: str, **variables: str) -> None:
    layout = suite.options.layout
    run_logged(
        [layout.engine_python, *command],
        layout.log("vllm-suite"),
        what=what,
        directory=layout.root,
        environment={**child_environment(), **variables},
    )
