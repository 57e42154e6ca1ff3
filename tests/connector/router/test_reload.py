"""What a running router takes anew from its files, by itself and on SIGHUP."""

import asyncio
import logging
import signal
import ssl
from pathlib import Path

import pytest

from connector.router import live
from connector.router.live import LiveFiles
from connector.router.secretfiles import read_secret
from tests.connector.certificates import make_authority, make_server, trusting
from tests.connector.router.conftest import MODEL, Scene, user
from tests.connector.router.fake_control_plane import ROUTER_TOKEN
from tests.connector.router.fake_engine import ENGINE_KEY
from tests.connector.router.fake_feed import FEED_TOKEN
from tests.connector.router.processes import environment_in, started, stopped
from tests.connector.router.waiting import eventually


def secret_in(path: Path, text: str) -> LiveFiles[str]:
    path.write_text(text)
    return LiveFiles(path.name, (path,), lambda: read_secret(path))


@pytest.mark.parametrize("broken", ["", "\nsecond line", "caf\xe9 SECRET", "SECRET\x01"])
def test_broken_file_changes_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    path = tmp_path / "secret"
    file = secret_in(path, "first")
    path.write_text(broken)
    assert not file.refresh()
    assert not file.refresh()
    assert file.current == "first"
    (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert str(path) in told.getMessage()
    assert "SECRET" not in told.getMessage()
    assert file.is_refused
    path.write_text("second")
    assert file.refresh()
    assert not file.is_refused
    assert file.current == "second"


def test_file_that_is_gone_keeps_what_it_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = secret_in(tmp_path / "secret", "first")
    (tmp_path / "secret").unlink()
    assert not file.refresh()
    assert file.current == "first"
    assert "cannot be read (No such file or directory)" in caplog.text


def test_file_that_says_the_same_is_no_change(tmp_path: Path) -> None:
    file, told = secret_in(tmp_path / "secret", "first"), []
    file.on_change = told.append
    fresh = tmp_path / "fresh"
    fresh.write_text("first\nand a remark")
    fresh.replace(tmp_path / "secret")
    assert not file.refresh()
    assert told == []


async def test_secrets_are_taken_where_they_are_used(
    still_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_key = secret_in(tmp_path / "engine-key", "outdated")
    feed_token = secret_in(tmp_path / "feed-token", "outdated")
    router_token = secret_in(tmp_path / "router-token", "outdated")
    monkeypatch.setattr(live, "REFRESH_SECONDS", 600)
    await still_scene.start_router(
        is_waiting=False,
        engine_key=engine_key,
        feed_token=feed_token,
        router_token=router_token,
        live=(engine_key, feed_token, router_token),
    )
    assert still_scene.router is not None
    (tmp_path / "router-token").write_text(ROUTER_TOKEN)
    still_scene.router.reload()
    await eventually(lambda: len(list(still_scene.live.fleet)) == 2, "the control plane takes the token")
    (tmp_path / "feed-token").write_text(FEED_TOKEN)
    still_scene.router.reload()
    await still_scene.until_connected()
    async with still_scene.post("/v1/chat/completions", {"model": MODEL, "messages": [user("hi")]}) as response:
        assert response.status == 401
    (tmp_path / "engine-key").write_text(ENGINE_KEY)
    still_scene.router.reload()
    await eventually(lambda: engine_key.current == ENGINE_KEY, "the key is read")
    await still_scene.chat([user("hi")])
    (tmp_path / "engine-key").write_text("")
    still_scene.router.reload()
    await eventually(lambda: engine_key.is_refused, "the empty file is refused")
    async with still_scene.client.get(f"{still_scene.url}/metrics") as response:
        text = await response.text()
    assert 'backhaul_router_file_refused{what="engine-key"} 1' in text
    assert 'backhaul_router_file_refused{what="feed-token"} 0' in text
    async with still_scene.post("/tokenize", {"model": MODEL, "prompt": "hi"}) as response:
        assert response.status == 200


async def common_name(port: int, context: ssl.SSLContext) -> str:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    return dict(field for part in certificate["subject"] for field in part)["commonName"]


async def test_sighup_renews_the_process_and_its_connections_go_on(tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    pair, trusted = make_server(tmp_path, "first", authority), trusting(authority)
    level = tmp_path / "level"
    level.write_text("INFO")
    environment = environment_in(tmp_path) | {
        "BACKHAUL_ROUTER_TLS_CERT_FILE": str(pair.cert),
        "BACKHAUL_ROUTER_TLS_KEY_FILE": str(pair.key),
        "BACKHAUL_LOG_LEVEL_FILE": str(level),
    }
    process, port = await started(environment)
    assert process.stderr is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
    assert await common_name(port, trusted) == "first"
    make_server(tmp_path, "second", authority).copy_to(pair)
    level.write_text("LOUD")
    process.send_signal(signal.SIGHUP)
    told = b""
    async with asyncio.timeout(30):
        while b"what=certificate" not in told or b"what=log level" not in told:
            told += await process.stderr.readline()
    assert b"reload_refused what=log level error=the log level must be DEBUG, INFO, WARNING or ERROR" in told
    assert b"reloaded what=certificate" in told
    assert await common_name(port, trusted) == "second"
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b'"status":"ok"' in await reader.read()
    writer.close()
    await stopped(process)
