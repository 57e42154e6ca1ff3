"""The router's own TLS and that of its engines, with real certificates."""

import asyncio
import io
import json
import logging
import ssl
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from connector.http import client_context, server_context
from connector.router import live
from connector.router.live import Fixed, LiveFiles
from tests.connector.certificates import Pair, make_authority, make_server, trusting
from tests.connector.router.conftest import API_KEY, MODEL, Scene, user
from tests.connector.router.sse import DONE, chunk
from tests.connector.router.test_failures import break_off
from tests.connector.router.waiting import eventually

CHAT = "/v1/chat/completions"


@pytest.fixture
def authority(tmp_path: Path) -> Pair:
    return make_authority(tmp_path, "authority")


@pytest.fixture
def pair(tmp_path: Path, authority: Pair) -> Pair:
    return make_server(tmp_path, "server", authority)


@pytest.fixture
def stranger(tmp_path: Path) -> Pair:
    return make_authority(tmp_path, "stranger")


async def serve_by_tls(scene: Scene, pair: Pair) -> None:
    """All engines, before the router starts."""
    for engine in scene.engines:
        await engine.stop_serving()
        engine.tls = server_context(pair.cert, pair.key)
        await engine.start_serving()
    scene.control.snapshot = scene.snapshot()


def live_server(pair: Pair) -> LiveFiles[ssl.SSLContext]:
    return LiveFiles("certificate", (pair.cert, pair.key), lambda: server_context(pair.cert, pair.key))


def post_by_tls(scene: Scene, authority: Pair, **fields: Any) -> Any:
    body = json.dumps({"model": MODEL, "messages": [user("hi")], **fields}).encode()
    headers = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json"}
    url = scene.url.replace("http:", "https:") + CHAT
    return scene.client.post(url, data=io.BytesIO(body), headers=headers, ssl=trusting(authority))


async def test_streams_come_piece_by_piece_through_tls_on_both_sides(
    still_scene: Scene, authority: Pair, pair: Pair
) -> None:
    await serve_by_tls(still_scene, pair)
    trusted = client_context(authority.cert)
    await still_scene.start_router(tls=live_server(pair), engine_tls=Fixed(trusted))
    step = asyncio.Semaphore(1)
    still_scene.decode.gate = cast(Any, step.acquire)
    still_scene.decode.events = [chunk("a"), DONE]
    async with post_by_tls(still_scene, authority, stream=True) as response:
        assert response.status == 200
        assert await response.content.readany() == chunk("a")
        step.release()
        assert await response.content.read() == DONE
    assert len(still_scene.prefill.received) == len(still_scene.decode.received) == 1
    assert still_scene.decode.received[0].offer is not None


async def test_reply_that_breaks_off_is_no_whole_one_through_tls(
    still_scene: Scene, authority: Pair, pair: Pair
) -> None:
    await serve_by_tls(still_scene, pair)
    await still_scene.start_router(tls=live_server(pair), engine_tls=Fixed(client_context(authority.cert)))

    still_scene.decode.script = break_off
    async with post_by_tls(still_scene, authority, stream=True) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()
    await eventually(lambda: still_scene.live.turns.num_active == 0, "no turn is left")


async def test_client_that_leaves_is_noticed_through_tls(still_scene: Scene, authority: Pair, pair: Pair) -> None:
    await still_scene.start_router(tls=live_server(pair))
    still_scene.decode.gate = cast(Any, asyncio.Event().wait)
    asking = asyncio.create_task(post_by_tls(still_scene, authority, stream=True).__aenter__())
    await eventually(lambda: still_scene.decode.received, "decode works")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await eventually(lambda: still_scene.decode.num_aborted == 1, "decode is told")
    await eventually(lambda: still_scene.live.admission.num_active == 0, "nothing is in flight")


@pytest.mark.parametrize("fault", ["authority", "name", "plain"])
async def test_engine_that_is_not_trusted_fails_the_turn_and_is_counted(
    still_scene: Scene, tmp_path: Path, authority: Pair, pair: Pair, stranger: Pair, fault: str
) -> None:
    elsewhere = make_server(tmp_path, "elsewhere", authority, "DNS:elsewhere.example")
    await serve_by_tls(still_scene, elsewhere if fault == "name" else pair)
    if fault == "plain":
        for engine in still_scene.engines:
            await engine.stop_serving()
            context, engine.tls = engine.tls, None
            await engine.start_serving()
            engine.tls = context
    trusted = client_context(stranger.cert if fault == "authority" else authority.cert)
    await still_scene.start_router(engine_tls=Fixed(trusted))
    async with still_scene.post(CHAT, {"model": MODEL, "messages": [user("hi")]}) as response:
        assert response.status == 502
        error = (await response.json())["error"]
        assert error["code"] == "engine_untrusted"
        assert error["message"] == "No trusted TLS connection to the decode engine could be made."
    assert still_scene.decode.received == still_scene.prefill.received == []
    assert still_scene.metric(f'requests_total{{path="{CHAT}",status="502"}}') == 1
    assert still_scene.metric('decode_alone_total{reason="prefill_failed"}') == 1
    assert still_scene.metric('engine_ejections_total{engine="d0",signal="tls"}') >= 1
    async with still_scene.post("/tokenize", {"model": MODEL, "prompt": "hi"}) as response:
        assert response.status == 502
    assert all(engine.num_active == 0 for engine in still_scene.live.fleet)


async def test_renewed_certificate_and_authorities_are_taken_and_broken_ones_are_not(
    still_scene: Scene,
    tmp_path: Path,
    authority: Pair,
    pair: Pair,
    stranger: Pair,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(live, "REFRESH_SECONDS", 0.01)
    await serve_by_tls(still_scene, pair)
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(stranger.cert.read_bytes())
    authorities = LiveFiles("engine authorities", (trusted,), lambda: client_context(trusted))
    own = make_server(tmp_path, "own", stranger)
    served = live_server(own)
    await still_scene.start_router(tls=served, engine_tls=authorities, live=(served, authorities))
    async with post_by_tls(still_scene, stranger) as response:
        assert response.status == 502
    trusted.write_bytes(authority.cert.read_bytes())
    await eventually(lambda: "what=engine authorities" in caplog.text, "the authorities are read anew")
    first = served.current
    own.cert.write_text("SECRET nonsense")
    with caplog.at_level(logging.ERROR):
        await eventually(lambda: "event=reload_refused what=certificate" in caplog.text, "it is told")
    assert "SECRET" not in caplog.text
    assert served.current is first
    make_server(tmp_path, "renewed", authority).copy_to(own)
    await eventually(lambda: served.current is not first, "the new one is in force")
    async with post_by_tls(still_scene, authority) as response:
        assert response.status == 200
