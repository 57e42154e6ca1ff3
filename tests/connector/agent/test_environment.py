"""Flags and environment: flags win, defaults are sane, and every mistake is one sentence."""

from pathlib import Path

import pytest

from connector.agent.environment import ConfigurationError, Options, Secret, read_options


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "agent-token").write_text("bh_agent_x \nsecond line\n")
    (tmp_path / "feed-token").write_text("bh_feed_y")
    return {
        "BACKHAUL_ENGINE_NAME": "d0",
        "BACKHAUL_LINK_PATH": str(tmp_path / "d0.sock"),
        "BACKHAUL_AGENT_TOKEN_FILE": str(tmp_path / "agent-token"),
        "BACKHAUL_FEED_TOKEN_FILE": str(tmp_path / "feed-token"),
        "BACKHAUL_STATE_DIR": str(tmp_path / "state"),
    }


def test_defaults_are_loopback_and_follow_from_each_other(environ: dict[str, str], tmp_path: Path) -> None:
    options = read_options([], environ)
    assert options == Options(
        controlplane_url="http://127.0.0.1:8000",
        agent_token=Secret("bh_agent_x"),
        engine_name="d0",
        link_path=tmp_path / "d0.sock",
        engine_url="http://127.0.0.1:8100",
        feed_host="127.0.0.1",
        feed_port=8110,
        feed_url="",
        feed_token=Secret("bh_feed_y"),
        state_dir=tmp_path / "state" / "agent-d0",
        otlp_endpoint="http://127.0.0.1:8000/v1/traces",
    )


def test_flags_win_over_the_environment(environ: dict[str, str]) -> None:
    environ |= {"BACKHAUL_ENGINE_URL": "http://10.0.0.1:9000", "BACKHAUL_CONTROLPLANE_URL": "http://env"}
    flags = ["--engine-name", "d7", "--controlplane-url", "https://cp.example/", "--feed-url", "wss://d7.example/feed"]
    options = read_options(flags, environ)
    assert (options.engine_name, options.feed_port) == ("d7", 9010)
    assert options.control_socket_url == "wss://cp.example/ws/agent/"
    assert options.otlp_endpoint == "https://cp.example/v1/traces"
    assert options.feed_url == "wss://d7.example/feed"


def test_empty_variable_counts_as_absent(environ: dict[str, str]) -> None:
    environ |= {"BACKHAUL_FEED_PORT": "", "BACKHAUL_OTLP_ENDPOINT": ""}
    assert read_options([], environ).feed_port == 8110


def test_secret_is_not_shown(environ: dict[str, str]) -> None:
    options = read_options([], environ)
    assert "bh_agent_x" not in repr(options)
    assert "bh_feed_y" not in f"{options!r}"
    assert f"Bearer {options.agent_token}" == "Bearer bh_agent_x"


def test_targets_that_would_get_the_token_unencrypted_are_named(environ: dict[str, str]) -> None:
    assert read_options([], environ).plaintext_token_targets() == []
    far = read_options(["--controlplane-url", "http://cp.example", "--otlp-endpoint", "https://o.example"], environ)
    assert far.plaintext_token_targets() == ["http://cp.example"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"BACKHAUL_ENGINE_NAME": ""}, "--engine-name or BACKHAUL_ENGINE_NAME is missing"),
        ({"BACKHAUL_ENGINE_NAME": "d 0"}, "--engine-name: 'd 0' must be"),
        ({"BACKHAUL_ENGINE_NAME": "../d0"}, "--engine-name: '../d0' must be"),
        ({"BACKHAUL_AGENT_TOKEN_FILE": ""}, "--agent-token-file or BACKHAUL_AGENT_TOKEN_FILE is missing"),
        ({"BACKHAUL_AGENT_TOKEN_FILE": "/nonexistent/token"}, "can't be read: No such file or directory"),
        ({"BACKHAUL_FEED_TOKEN_FILE": "/"}, "can't be read: Is a directory"),
        ({"BACKHAUL_FEED_TOKEN_FILE": "/dev/null"}, "the first line of /dev/null holds no token"),
        ({"BACKHAUL_LINK_PATH": ""}, "--link-path or BACKHAUL_LINK_PATH is missing"),
        ({"BACKHAUL_LINK_PATH": "/tmp/" + "x" * 200}, "is longer than a unix socket's 107 bytes"),
        ({"BACKHAUL_LINK_PATH": "/dev/null"}, "exists and is not a socket"),
        ({"BACKHAUL_CONTROLPLANE_URL": "127.0.0.1:8000"}, "is not a URL that starts with http or https"),
        ({"BACKHAUL_CONTROLPLANE_URL": "http://[::1"}, "is not a URL"),
        ({"BACKHAUL_ENGINE_URL": "http://host:99999"}, "is not a URL"),
        ({"BACKHAUL_FEED_URL": "http://x/feed"}, "is not a URL that starts with ws or wss"),
        ({"BACKHAUL_OTLP_ENDPOINT": "grpc://x"}, "is not a URL"),
        ({"BACKHAUL_FEED_PORT": "65536"}, "is not a port from 0 to 65535"),
        ({"BACKHAUL_FEED_PORT": "-1"}, "is not a port"),
        ({"BACKHAUL_FEED_HOST": "0.0.0.0"}, "--feed-url is needed"),
        ({"BACKHAUL_LOG_LEVEL": "loud"}, "is not DEBUG, INFO, WARNING or ERROR"),
    ],
)
def test_mistake_is_one_sentence(changes: dict[str, str], expected: str, environ: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as failure:
        read_options([], environ | changes)
    assert expected in str(failure.value)
    assert str(failure.value).endswith(".")
    assert "\n" not in str(failure.value)


def test_help_names_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        read_options(["--help"], {})
    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in ("AGENT_TOKEN_FILE", "LINK_PATH", "STATE_DIR", "FEED_PORT", "OTLP_ENDPOINT", "CONTROLPLANE_URL"):
        assert f"BACKHAUL_{name}" in text
