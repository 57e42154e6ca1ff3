"""Two engines that nobody's launcher knows join a running fleet, by hand, as the README says. Real engines."""

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.e2e.stack import ROOT, Stack, eventually
from tests.e2e.test_conversations import SYSTEM, client_of, is_whole
from tests.e2e.test_failures import until_healthy

RUN = uuid.uuid4().hex[:6]
MODEL = f"adopted-{RUN}"
PARTS = {f"own-prefill-{RUN}": ("kv_producer", 0), f"own-decode-{RUN}": ("kv_consumer", 1)}
"""Names of this run alone: a fleet remembers which engines it approved."""


def engine_command(stack: Stack, name: str, port: int, sockets: Path) -> list[str]:
    """An operator's own command line: what is Backhaul's is the transfer config."""
    role, _ = PARTS[name]
    transfer = {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": "connector.engine.connector",
        "kv_role": role,
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "bidirectional_kv_xfer": True,
            "backhaul_engine_name": name,
            "backhaul_link_path": str(sockets / f"{name}.sock"),
            "backhaul_fleet_key_file": str(stack.run / "fleet.key"),
        },
    }
    vllm = [str(ROOT / ".venv-engine/bin/python"), "-m", "vllm.entrypoints.openai.api_server"]
    model = ["--model", str(stack.run / "model"), "--served-model-name", MODEL, "--max-model-len", "8192"]
    cpu = ["--enforce-eager", "--dtype", "float32", "--block-size", "32"]
    prefill = ["--no-enable-prefix-caching"] if role == "kv_producer" else []
    address = ["--host", "127.0.0.1", "--port", str(port)]
    return [*vllm, *model, *cpu, *prefill, *address, "--kv-transfer-config", json.dumps(transfer)]


def agent_command(stack: Stack, name: str, port: int, sockets: Path, token_file: Path) -> list[str]:
    return [
        str(ROOT / ".venv/bin/backhaul-agent"),
        *("--engine-name", name),
        *("--engine-url", f"http://127.0.0.1:{port}"),
        *("--link-path", str(sockets / f"{name}.sock")),
        *("--controlplane-url", stack.controlplane_url),
        *("--agent-token-file", str(token_file)),
        *("--feed-token-file", str(stack.run / "feed-token")),
        *("--state-dir", str(token_file.parent / "state")),
    ]


def port_of(stack: Stack, index: int) -> int:
    return 8150 + stack.offset + 20 * index


def variables(stack: Stack, index: int) -> dict[str, str]:
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "UCX_NET_DEVICES": "lo",
        "UCX_TLS": "tcp",
        "VLLM_API_KEY": stack.secret("engine-key"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(5680 + stack.offset + index),
    }


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """An engine that is still starting ignores SIGTERM for ever once its core is gone (vLLM 0.32)."""
    for process in processes:
        os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)


@pytest.fixture
def own_parts(stack: Stack, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Engines and agents started by hand; yields the file that the agents read their enrolment token from."""
    sockets = tmp_path_factory.mktemp("s")
    token_file = tmp_path / "agent-token"
    processes: list[subprocess.Popen[bytes]] = []
    with (tmp_path / "log").open("wb") as log:
        for name, (_, index) in PARTS.items():
            port = port_of(stack, index)
            agent = agent_command(stack, name, port, sockets, token_file)
            # The token is made in the test, so the agent waits for its file.
            waiting = ["sh", "-c", 'while ! [ -s "$0" ]; do sleep 0.2; done; exec "$@"', str(token_file), *agent]
            processes += [
                subprocess.Popen(
                    command, env=variables(stack, index), stdout=log, stderr=log, start_new_session=True, cwd=tmp_path
                )
                for command in (engine_command(stack, name, port, sockets), waiting)
            ]
        try:
            yield token_file
        finally:
            end(processes)


def write_secret(path: Path, secret: str) -> None:
    path.touch(mode=0o600)
    path.write_text(secret)


async def enrol(stack: Stack, token_file: Path) -> None:
    """An enrolment token of the operator's own, which approves nothing by itself."""
    async with stack.rest() as rest:
        response = await rest.post("/tokens/", json={"kind": "agent", "name": f"adoption-{uuid.uuid4().hex[:8]}"})
    assert response.status_code == 201, response.text
    write_secret(token_file, response.json()["secret"])


async def states(stack: Stack) -> dict[str, str]:
    return {row["name"]: row["state"] for row in await stack.rows("/engines/") if row["name"] in PARTS}


async def models(stack: Stack) -> set[str]:
    async with stack.client() as client:
        return {model["id"] for model in (await client.get("/models")).json()["data"]}


async def converse(client: AsyncOpenAI, turns: int) -> None:
    messages: list[Any] = [{"role": "system", "content": SYSTEM + uuid.uuid4().hex}]
    for number in range(turns):
        messages.append({"role": "user", "content": f"Entry {number}."})
        answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, temperature=0)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})


@pytest.mark.timeout(480)
async def test_hand_started_pair_joins_after_approval(stack: Stack, own_parts: Path) -> None:
    await enrol(stack, own_parts)

    async def are_pending() -> bool:
        return await states(stack) == dict.fromkeys(PARTS, "pending")

    await eventually(are_pending, within_seconds=30, what="both engines wait for approval")
    assert MODEL not in await models(stack)
    async with stack.rest() as rest:
        for name in PARTS:
            assert (await rest.post(f"/engines/{name}/approve/")).status_code == 200

    async def is_served() -> bool:
        ready = await states(stack) == dict.fromkeys(PARTS, "ready")
        return ready and MODEL in await models(stack)

    await eventually(is_served, within_seconds=300, what="the adopted model is served")
    # An engine's HTTP comes up seconds after its connector, and either engine alone makes the model served.
    for _, index in PARTS.values():
        await until_healthy(f"http://127.0.0.1:{port_of(stack, index)}/health", 120)
    async with client_of(stack) as client:
        await converse(client, 3)

    async def reuses() -> list[str]:
        sessions = await stack.rows("/sessions/", model=MODEL)
        turns = [turn for row in sessions for turn in await stack.rows(f"/sessions/{row['id']}/turns/")]
        is_done = len(turns) >= 3 and all(is_whole(turn) for turn in turns)
        return [turn["prefill_decision"] for turn in turns if turn["reused_tokens"]] if is_done else []

    assert len(await eventually(reuses, within_seconds=20, what="three turns in REST")) == 2


async def test_readme_names_every_key_of_the_transfer_config(stack: Stack, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    config = json.loads(engine_command(stack, next(iter(PARTS)), 1, tmp_path)[-1])
    for key in (*config, *config["kv_connector_extra_config"]):
        assert key in readme, key
    for flag in agent_command(stack, next(iter(PARTS)), 1, tmp_path, tmp_path)[1::2]:
        assert flag in readme, flag


async def test_wrong_tokens_are_refused_at_every_door(stack: Stack) -> None:
    wrong = {"Authorization": "Bearer bh_admin_" + "x" * 43}
    doors = {
        f"{stack.controlplane_url}/api/v1/engines/": 401,
        f"{stack.router_url}/v1/models": 401,
        f"{stack.prefill_url}/v1/models": 401,
        stack.decode_feed_url.replace("ws://", "http://"): 401,
    }
    async with httpx.AsyncClient(headers=wrong) as client:
        for url, status in doors.items():
            assert (await client.get(url)).status_code == status, url
        spans = await client.post(f"{stack.controlplane_url}/v1/traces", content=b"")
        assert spans.status_code == 401
