"""The engines of the correctness run: two prefill engines, without and with a prefix cache, and one decode engine.

All have few KV blocks, so that freed ones are in use again within a few requests. ``mutation`` breaks our connector on
purpose (see ``broken_connector``): the run must then fail.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from deploy.local.console import Console
from deploy.local.engines import Engine, engine_command, transfer_config
from deploy.local.environment import Options
from deploy.local.model import prepare_folder
from tests.load.pair import prepare_run, running_engines

ADAPTERS = ("adapter-a", "adapter-b")
NUM_ADAPTER_SLOTS = len(ADAPTERS) + 1
"""The last slot stays empty: on CPUs vLLM 0.32 applies it to what shares a batch with adapters without having one.
https://github.com/vllm-project/vllm/pull/48421"""
MAX_MODEL_LEN = 1024
NUM_BLOCKS = {"prefill-0": 352, "prefill-1": 352, "decode-0": 384}
CACHING_ENGINES = ("prefill-1", "decode-0")


@dataclass(frozen=True, kw_only=True)
class Trio:
    plain_prefill: Engine
    caching_prefill: Engine
    decode: Engine


@contextmanager
def running_trio(options: Options, console: Console, *, mutation: str = "") -> Iterator[Trio]:
    """All three ready; ended afterwards."""
    options = replace(options, num_prefill=2, num_decode=1)
    prepare_run(options)
    models = _prepare_models(options, console)

    def command(engine: Engine) -> list[str | Path]:
        return [*engine_command(options, engine), *_own_arguments(options, engine, models, mutation)]

    with ExitStack() as stack:
        with console.step("engines", "starting two prefill engines and one decode engine"):
            plain, caching, decode = stack.enter_context(running_engines(options, command))
        yield Trio(plain_prefill=plain, caching_prefill=caching, decode=decode)


def _own_arguments(options: Options, engine: Engine, models: Path, mutation: str) -> Iterator[str | Path]:
    """A later argument wins over the same one of the local stack."""
    yield from ("--model", models / "model", "--max-model-len", str(MAX_MODEL_LEN))
    yield from ("--num-gpu-blocks-override", str(NUM_BLOCKS[engine.name]))
    caches = engine.name in CACHING_ENGINES
    yield "--enable-prefix-caching" if caches else "--no-enable-prefix-caching"
    yield from ("--enable-lora", "--max-loras", str(NUM_ADAPTER_SLOTS), "--max-lora-rank", "8", "--lora-modules")
    yield from (f"{name}={models / name}" for name in ADAPTERS)
    yield "--disable-uvicorn-access-log"
    if mutation:
        yield from ("--kv-transfer-config", json.dumps(_broken_config(options, engine, mutation)))


def _broken_config(options: Options, engine: Engine, mutation: str) -> dict[str, Any]:
    config: dict[str, Any] = transfer_config(options.layout, engine)
    config["kv_connector_module_path"] = "tests.load.correctness.broken_connector"
    config["kv_connector_extra_config"]["mutation"] = mutation
    return config


def _prepare_models(options: Options, console: Console) -> Path:
    """``<run>/correctness`` with the model and its adapters, made again on a new recipe."""
    layout = options.layout
    folder = layout.run / "correctness"
    prepare_folder(
        options,
        console,
        folder,
        module="tests.load.correctness.tiny_models",
        recipe=(Path(__file__).with_name("tiny_models.py"), layout.root / "deploy" / "local" / "tiny_model.py"),
        what="making a two-layer Qwen3 and two LoRA adapters with random weights",
    )
    return folder
