"""Field report 37 (smg-project/smg#1622, llm-d/llm-d-router#1461): disaggregation that silently isn't happening."""

import re
from pathlib import Path
from typing import Any

import pytest

from connector.router.paths import REFUSED, SERVED, Mode
from connector.router.requests import OneLeg
from tests.connector.router.conftest import API_KEY, Scene, user
from tests.connector.router.fake_engine import MODEL

README = Path(__file__).resolve().parents[3] / "README.md"
ROW = re.compile(r"^\| `(GET|POST) ([^`]+)` \| ([a-z ]+?) \| ", re.MULTILINE)
REFUSED_ROW = re.compile(r"^\| (`/[^|]+) \| refused, 501 \| ", re.MULTILINE)

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [user("hi")]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [user("hi")], "max_tokens": 8},
    "/v1/messages/count_tokens": {"messages": [user("hi")]},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1, 2]},
}


def test_readme_says_what_the_code_does() -> None:
    rows = {(method, path): mode for method, path, mode in ROW.findall(README.read_text())}
    assert rows == {key: mode.value for key, mode in SERVED.items()}
    refused = [name for row in REFUSED_ROW.findall(README.read_text()) for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(refused) == sorted(REFUSED)


def test_readme_names_every_reason_for_one_leg() -> None:
    section = README.read_text().partition("## Paths")[2].partition("\n## ")[0]
    missing = [reason for reason in OneLeg if f"`{reason.value}`" not in section]
    assert not missing


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("method", "path"), [key for key in SERVED if key[0] == "POST"])
async def test_each_path_asks_the_engines_that_its_mode_says(
    scene: Scene, method: str, path: str, is_stream: bool
) -> None:
    async with scene.post(path, {"model": MODEL, **BODIES[path], "stream": is_stream}) as response:
        assert response.status == 200, await response.read()
        await response.read()
    legs = [len(scene.prefill.received), len(scene.decode.received)]
    assert sorted(legs) == [1, 1] if SERVED[method, path] is Mode.TWO_LEGS else [0, 1]
    assert {received.path for engine in scene.engines for received in engine.received} == {path}


@pytest.mark.parametrize("path", [name.replace("{id}", "resp_1") for name in REFUSED])
async def test_paths_that_are_not_served_say_so_and_reach_no_engine(scene: Scene, path: str) -> None:
    for method in ("POST", "GET", "DELETE"):
        async with scene.client.request(
            method, scene.url + path, json={}, headers={"Authorization": f"Bearer {API_KEY}"}
        ) as response:
            assert response.status == 501
            assert (await response.json())["error"]["code"] == "not_implemented"
    async with scene.post("/v1/unheard-of", {}) as response:
        assert response.status == 404
    assert scene.prefill.received == scene.decode.received == []


async def test_asides_are_checked_like_turns(scene: Scene) -> None:
    async with scene.post("/tokenize", {"model": MODEL, "prompt": "hi"}, "wrong") as response:
        assert response.status == 401
    async with scene.post("/tokenize", {"model": "nobody", "prompt": "hi"}) as response:
        assert response.status == 404
        assert (await response.json())["error"]["param"] == "model"
    async with scene.post("/tokenize", b"{") as response:
        assert response.status == 400
    assert scene.prefill.received == scene.decode.received == []


async def test_aside_asks_another_engine_when_the_first_cannot_be_reached(scene: Scene) -> None:
    await scene.prefill.stop_serving()
    for _ in range(3):
        async with scene.post("/tokenize", {"model": MODEL, "prompt": "hi", "cache_salt": "x"}) as response:
            assert response.status == 200
            assert (await response.json())["tokens"] == [1, 2]
    assert len(scene.decode.received) == 3
    assert "cache_salt" not in scene.decode.received[0].body
    await scene.decode.stop_serving()
    async with scene.post("/tokenize", {"model": MODEL, "prompt": "hi"}) as response:
        assert response.status == 503
        assert response.headers["Retry-After"]
