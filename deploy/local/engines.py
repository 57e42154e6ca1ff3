"""The vLLM engines of the local pair: names, ports, and the command that each one runs with."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.local.credentials import read
from deploy.local.environment import DECODE_NIXL_OFFSET, FEED_PORT_OFFSET, Options
from deploy.local.layout import Layout
from deploy.local.programs import Program
from deploy.local.sources import sources_of

SERVED_MODEL = "tiny"
MAX_MODEL_LEN = 16384
BLOCK_SIZE = 32
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}

ENGINE_VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "SPT_NOENV": "1",  # setproctitle would overwrite the environment, by which leftovers are found
    "UCX_NET_DEVICES": "lo",
    "UCX_TLS": "tcp",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, kw_only=True)
class Engine:
    name: str
    role: str
    port: int
    nixl_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def feed_port(self) -> int:
        return self.port + FEED_PORT_OFFSET

    @property
    def feed_url(self) -> str:
        return f"ws://127.0.0.1:{self.feed_port}/feed"


def engines_of(options: Options) -> tuple[Engine, ...]:
    return (
        *_engines("prefill", options.num_prefill, options.ports.prefill, options.ports.nixl),
        *_engines("decode", options.num_decode, options.ports.decode, options.ports.nixl + DECODE_NIXL_OFFSET),
    )


def _engines(role: str, count: int, port: int, nixl_port: int) -> Iterator[Engine]:
    for index in range(count):
        yield Engine(name=f"{role}-{index}", role=role, port=port + index, nixl_port=nixl_port + index)


def engine_program(options: Options, engine: Engine) -> Program:
    """The engine key goes by environment, so that it doesn't show in the process list.

    Changed connector sources change the definition, so that ``make up`` restarts the engine with them.
    """
    layout = options.layout
    return Program(
        name=engine.name,
        command=tuple(engine_command(options, engine)),
        environment={
            **ENGINE_VARIABLES,
            "BACKHAUL_SOURCES": sources_of(layout, "connector/engine", (layout.model / "stamp").read_text()),
            "VLLM_API_KEY": read(layout.run / "engine-key"),
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(engine.nixl_port),
        },
        port=engine.port,
        port_variable=f"BACKHAUL_{engine.role.upper()}_PORT",
        health="http /health",
        start_seconds=60,
        stop_seconds=20,
        stops_group=True,
    )


def engine_command(options: Options, engine: Engine) -> Iterator[str | Path]:
    yield from (options.layout.engine_python, "-m", "vllm.entrypoints.openai.api_server")
    yield from ("--model", options.layout.model, "--served-model-name", SERVED_MODEL)
    yield from ("--host", "127.0.0.1", "--port", str(engine.port))
    yield from ("--max-model-len", str(MAX_MODEL_LEN), "--block-size", str(BLOCK_SIZE))
    yield from ("--enforce-eager", "--dtype", "float32")
    yield from ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    if engine.role == "prefill" and not options.has_prefill_prefix_cache:
        yield "--no-enable-prefix-caching"
    yield from ("--kv-transfer-config", json.dumps(transfer_config(options.layout, engine), separators=(",", ":")))


def transfer_config(layout: Layout, engine: Engine) -> dict[str, object]:
    return {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": "connector.engine.connector",
        "kv_role": KV_ROLES[engine.role],
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "bidirectional_kv_xfer": True,
            "backhaul_engine_name": engine.name,
            "backhaul_link_path": str(layout.link_path(engine.name)),
            "backhaul_fleet_key_file": str(layout.run / "fleet.key"),
        },
    }
