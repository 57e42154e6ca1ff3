"""Has the tiny model made once, and again when its recipe changed."""

import shutil

from deploy.local.commands import run_logged
from deploy.local.console import Console
from deploy.local.environment import Options
from deploy.local.stamps import digest_of, is_current, write_stamp
from deploy.local.virtualenvs import child_environment


def prepare(options: Options, console: Console) -> None:
    """Leaves a whole model in ``<run>/model``: it is made beside it and moved there."""
    layout = options.layout
    recipe = layout.root / "deploy" / "local"
    digest = digest_of([recipe / "tiny_model.py", recipe / "chat_template.jinja"])
    if is_current(layout.model / "stamp", digest):
        return
    with console.step("model", "making a tiny Qwen3 with random weights"):
        unfinished = layout.run / "model.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        run_logged(
            [layout.engine_python, "-m", "deploy.local.tiny_model", unfinished],
            layout.log("setup-model"),
            what="making the model",
            directory=layout.root,
            environment={**child_environment(), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
        write_stamp(unfinished / "stamp", digest)
        shutil.rmtree(layout.model, ignore_errors=True)
        unfinished.rename(layout.model)
