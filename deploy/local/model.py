"""Has the tiny model made once, and again when its recipe changed."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from deploy.local.commands import run_logged
from deploy.local.console import Console
from deploy.local.environment import Options
from deploy.local.stamps import digest_of, is_current, write_stamp
from deploy.local.virtualenvs import child_environment


def prepare(options: Options, console: Console) -> None:
    """Leaves a whole model in ``<run>/model``."""
    recipe = options.layout.root / "deploy" / "local"
    prepare_folder(
        options,
        console,
        options.layout.model,
        module="deploy.local.tiny_model",
        recipe=(recipe / "tiny_model.py", recipe / "chat_template.jinja"),
        what="making a tiny Qwen3 with random weights",
    )


def prepare_folder(
    options: Options, console: Console, folder: Path, *, module: str, recipe: Sequence[Path], what: str
) -> None:
    """Leaves in ``folder`` what ``module <folder>`` makes with the engines' Python, made anew when ``recipe`` changed.

    It is made beside it and moved there, so that it is whole or absent.
    """
    layout = options.layout
    digest = digest_of(list(recipe))
    if is_current(folder / "stamp", digest):
        return
    with console.step(folder.name, what):
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        run_logged(
            [layout.engine_python, "-m", module, unfinished],
            layout.log(f"setup-{folder.name}"),
            what=what,
            directory=layout.root,
            environment={**child_environment(), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
        write_stamp(unfinished / "stamp", digest)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
