"""A bare P-D pair for benchmarks: real engines with our connector or vLLM's own, no router, agent or control plane."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx

from deploy.local import credentials, model
from deploy.local.console import Console
from deploy.local.engines import ENGINE_VARIABLES, Engine, engine_command, engines_of, transfer_config
from deploy.local.environment import Options

READY_SECONDS = 480
STOP_SECONDS = 60


def stock_config(options: Options, engine: Engine) -> dict[str, object]:
    """The same engine with vLLM's own connector and its own defaults."""
    own = {"kv_connector_module_path": "tests.load.stock_connector"}
    return (
        transfer_config(options.layout, engine) | own | {"kv_connector_extra_config": {"bidirectional_kv_xfer": True}}
    )


@contextmanager
def running_pair(
    options: Options, console: Console, *, is_stock: bool, has_prefix_cache: bool
) -> Iterator[list[Engine]]:
    """P and D, ready; both are ended afterwards, with their children."""
    options = replace(options, has_prefill_prefix_cache=has_prefix_cache)
    prepare_run(options)
    model.prepare(options, console)

    def command(engine: Engine) -> list[str | Path]:
        parts = list(engine_command(options, engine))
        return [*parts[:-1], json.dumps(stock_config(options, engine))] if is_stock else parts

    with running_engines(options, command) as engines:
        yield engines


def prepare_run(options: Options) -> None:
    options.layout.create()
    credentials.make_missing(options.layout.run)


@contextmanager
def running_engines(
    options: Options, command_of: Callable[[Engine], Sequence[str | Path]], variables: Mapping[str, str] | None = None
) -> Iterator[list[Engine]]:
    """All engines of the options, ready, each started by its own command; ended afterwards, with their children."""
    engines = list(engines_of(options))
    processes = [_start(options, engine, command_of(engine), variables or {}) for engine in engines]
    try:
        for engine, process in zip(engines, processes, strict=True):
            _wait(engine, process)
        yield engines
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            _see_end(process)


def _see_end(process: subprocess.Popen[bytes]) -> None:
    """An engine that doesn't end when told to is killed with its children: nothing may outlive a run."""
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=STOP_SECONDS)


def _start(
    options: Options, engine: Engine, command: Sequence[str | Path], given: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    variables = {**given, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(engine.nixl_port)}
    with options.layout.log(engine.name).open("ab") as log:
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=options.layout.root,
            env={**os.environ, **ENGINE_VARIABLES, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(engine: Engine, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"{engine.name} ended with {process.returncode}; its log is in the run directory")
        try:
            if httpx.get(f"{engine.url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise SystemExit(f"{engine.name} was not ready within {READY_SECONDS} s")
