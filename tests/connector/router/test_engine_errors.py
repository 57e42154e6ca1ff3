"""What an engine answers when it refuses or fails, as the client sees it, and how often an engine is asked.

Field report 41 (vllm-project/vllm-ascend#12166, #15108, #15238): backend errors became an empty 200 or a 500,
and 4xx were retried. Breaking connections: test_failures.py. Errors for Anthropic's clients: test_messages_api.py.
"""

from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web

from connector.protocol import Role
from tests.connector.router.conftest import MODEL, Scene, user
from tests.connector.router.fake_engine import Received
from tests.connector.router.waiting import eventually

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [user("hi")]},
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/v1/responses": {"model": MODEL, "input": "hi"},
}

FORMS = {
    "vllm": ("application/json", b'{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}'),
    "fastapi": ("application/json", b'{"detail":[{"loc":["body","messages"],"msg":"Field required"}]}'),
    "proxy": ("text/html; charset=utf-8", b"<html>Bad Gateway</html>"),
    "empty": ("text/plain", b""),
}

CLIENTS_FAULT = (400, 401, 404, 413, 422, 429)
TRIED_ELSEWHERE = (502, 503)


class Answer:
    """One engine's answer to every request; it counts them."""

    def __init__(self, status: int, form: str = "vllm", headers: dict[str, str] | None = None) -> None:
        self.status = status
        self.kind, self.body = FORMS[form]
        self.headers = headers or {}
        self.num_asked = 0

    async def __call__(self, request: web.BaseRequest, received: Received) -> web.Response:
        self.num_asked += 1
        return web.Response(status=self.status, body=self.body, headers={"Content-Type": self.kind, **self.headers})


async def ask(scene: Scene, path: str, is_stream: bool) -> tuple[int, str, bytes, Mapping[str, str]]:
    async with scene.post(path, {**BODIES[path], "stream": is_stream}) as response:
        return response.status, response.headers["Content-Type"], await response.read(), response.headers


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
async def test_refusal_reaches_the_client_as_it_is_and_is_asked_for_once(
    scene: Scene, role: Role, form: str, path: str, is_stream: bool
) -> None:
    """With a second engine of each role there, which must not be tried."""
    await scene.add_engine("p1", Role.PREFILL)
    await scene.add_engine("d1", Role.DECODE)
    await scene.publish()
    for status in CLIENTS_FAULT:
        answer = Answer(status, form, {"Retry-After": "7", "X-Engine": "yes"})
        for engine in scene.engines:
            engine.script = answer if engine.role is role else None
        got, kind, body, headers = await ask(scene, path, is_stream)
        assert (got, kind, body) == (status, answer.kind, answer.body)
        assert (headers["Retry-After"], headers["X-Engine"]) == ("7", "yes")
        assert answer.num_asked == 1
    num_decoded = sum(len(engine.received) for engine in scene.engines if engine.role is Role.DECODE)
    assert num_decoded == (len(CLIENTS_FAULT) if role is Role.DECODE else 0)
    await eventually(lambda: scene.live.turns.num_active == 0, "no turn is left")
    assert not any(engine.num_active for engine in scene.live.fleet)
    assert scene.metric('engine_ejections_total{engine="d0",signal="status"}') == 0


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("status", [500, 501, 504, *TRIED_ELSEWHERE])
async def test_failure_of_decode_is_never_an_empty_success(
    scene: Scene, status: int, path: str, is_stream: bool
) -> None:
    """All decode engines fail alike: two of them are asked at most, and the last word is the client's."""
    for name in ("d1", "d2"):
        await scene.add_engine(name, Role.DECODE)
    await scene.publish()
    answer = Answer(status)
    for engine in scene.engines:
        engine.script = answer if engine.role is Role.DECODE else None
    got, kind, body, _ = await ask(scene, path, is_stream)
    assert (got, kind, body) == (status, answer.kind, answer.body)
    assert answer.num_asked == (2 if status in TRIED_ELSEWHERE else 1)
    assert len(scene.prefill.received) == 1


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("status", [500, 502, 503])
async def test_failure_of_prefill_costs_no_client_its_answer(
    scene: Scene, status: int, path: str, is_stream: bool
) -> None:
    await scene.add_engine("p1", Role.PREFILL)
    await scene.publish()
    answer = Answer(status, "proxy")
    for engine in scene.engines:
        engine.script = answer if engine.role is Role.PREFILL else None
    got, _, body, _ = await ask(scene, path, is_stream)
    assert got == 200
    assert body
    assert answer.num_asked == 1
    assert len(scene.decode.received) == 1
