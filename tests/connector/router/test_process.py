"""The process: settings, help, start and end of ``python -m connector.router``."""

import asyncio
from pathlib import Path

import pytest

from connector.router.environment import OPTIONS, read_settings
from connector.router.settingfiles import ConfigurationError
from tests.connector.certificates import make_authority, make_server
from tests.connector.router.processes import environment_in, run_router, started, stopped


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return environment_in(tmp_path)


def test_settings_are_read_with_defaults_and_secrets_stay_hidden(environment: dict[str, str]) -> None:
    del environment["BACKHAUL_CONTROLPLANE_URL"]
    settings = read_settings([], environment)
    assert settings.router_token.current == "secret-ROUTER_TOKEN_FILE"
    assert settings.otlp_endpoint == "http://127.0.0.1:8000/v1/traces"
    assert (settings.host, settings.port, settings.max_body_bytes) == ("127.0.0.1", 8080, 32 * 1024 * 1024)
    assert settings.state_dir == Path(environment["BACKHAUL_STATE_DIR"]) / "routers" / "r0"
    assert "secret-" not in repr(settings)


@pytest.mark.parametrize("url", ["", "redis://u:p@h:6379/1", "rediss://h", "unix:///run/redis.sock"])
def test_redis_of_the_claims_is_optional(environment: dict[str, str], url: str) -> None:
    environment["BACKHAUL_ROUTER_REDIS_URL"] = url
    assert read_settings([], environment).redis_url == url


def test_flag_wins_over_variable(environment: dict[str, str]) -> None:
    environment["BACKHAUL_ROUTER_PORT"] = "9000"
    assert read_settings(["--router-port", "9001"], environment).port == 9001
    assert read_settings([], environment).port == 9000


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("ROUTER_PORT", "http", "must be a number"),
        ("ROUTER_PORT", "70000", "must be between"),
        ("ROUTER_NAME", "a b", "must be 1-128 letters"),
        ("CONTROLPLANE_URL", "ftp://x", "must be an http or https URL"),
        ("ROUTER_HOST", "not a host", "must be an address or a host name"),
        ("LOG_LEVEL", "LOUD", "must be DEBUG, INFO"),
        ("ENGINE_KEY_FILE", "/nowhere", "cannot be read"),
        ("FLEET_KEY_FILE", "/nowhere", "cannot be read"),
        ("ROUTER_TOKEN_FILE", "", "is not set"),
        ("ROUTER_REDIS_URL", "http://:secret@x", "must be redis://"),
        ("ROUTER_REDIS_URL", "redis://:secret@x/db", "must be redis://"),
        ("ROUTER_REDIS_URL", "redis://:secret@x:port", "is no URL"),
        ("ROUTER_REDIS_URL", "redis://:secret@", "must be redis://"),
        ("ROUTER_TLS_CERT_FILE", "/nowhere", "go together"),
        ("ROUTER_TLS_KEY_FILE", "/nowhere", "go together"),
        ("ENGINE_CA_FILE", "/nowhere", "/nowhere cannot be read (No such file or directory)"),
        ("ENGINE_CA_FILE", "/etc/hostname", "holds no certificate in PEM"),
    ],
)
def test_wrong_setting_is_told_in_one_sentence(
    environment: dict[str, str], name: str, value: str, sentence: str
) -> None:
    environment[f"BACKHAUL_{name}"] = value
    with pytest.raises(ConfigurationError) as caught:
        read_settings([], environment)
    assert f"BACKHAUL_{name}" in str(caught.value)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_fleet_key_that_others_can_read_is_refused(environment: dict[str, str]) -> None:
    Path(environment["BACKHAUL_FLEET_KEY_FILE"]).chmod(0o644)
    with pytest.raises(ConfigurationError, match="readable by others"):
        read_settings([], environment)


@pytest.mark.parametrize("host", ["::1", "[::1]", "0.0.0.0", "router.example"])
def test_hosts_of_every_kind_are_taken(environment: dict[str, str], host: str) -> None:
    assert read_settings(["--router-host", host], environment).host == host.strip("[]")


def test_tls_files_are_checked_before_anything_starts(environment: dict[str, str], tmp_path: Path) -> None:
    authority = make_authority(tmp_path, "authority")
    pair = make_server(tmp_path, "server", authority)
    environment["BACKHAUL_ROUTER_TLS_CERT_FILE"] = str(pair.cert)
    environment["BACKHAUL_ROUTER_TLS_KEY_FILE"] = str(pair.key)
    environment["BACKHAUL_ENGINE_CA_FILE"] = str(authority.cert)
    settings = read_settings([], environment)
    assert settings.tls in settings.live
    assert settings.engine_tls in settings.live
    pair.key.chmod(0o644)
    with pytest.raises(ConfigurationError, match=r"ROUTER_TLS_CERT_FILE: the key .* is readable by others"):
        read_settings([], environment)
    pair.key.unlink()
    with pytest.raises(ConfigurationError, match=r"server.key cannot be read"):
        read_settings([], environment)


async def test_help_names_every_option() -> None:
    process = await run_router({}, "--help")
    out, _ = await process.communicate()
    assert process.returncode == 0
    for option in OPTIONS:
        assert option.flag in out.decode()
        assert option.variable in out.decode().replace("\n", "").replace(" ", "")


async def test_wrong_setting_ends_the_process_with_one_line(environment: dict[str, str]) -> None:
    process = await run_router(environment, "--router-port", "nine")
    _, err = await process.communicate()
    assert process.returncode == 2
    assert err.decode() == "router: BACKHAUL_ROUTER_PORT must be a number, not 'nine'.\n"


async def test_process_listens_alone_and_ends_cleanly_on_sigterm(environment: dict[str, str]) -> None:
    process, port = await started(environment)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert b'"status":"ok"' in await reader.read()
    writer.close()
    taken = await run_router(environment, "--router-port", str(port))
    _, err = await taken.communicate()
    assert taken.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in err.decode()
    await stopped(process)
