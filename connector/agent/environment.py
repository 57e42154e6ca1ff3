"""The only reader of flags and environment: typed options, or one sentence that says what is wrong."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

MAX_LINK_PATH_BYTES = 107
"""``sun_path`` of a unix socket on Linux, less its terminating zero."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})

DESCRIPTION = """The agent speaks for one vLLM engine: it hands live policy and commands to the engine, sends its events
to the control plane, exports a span for each KV transfer, and serves the engine's leases to routers."""

EPILOG = "Every flag can also be given as the environment variable named in its help; the flag wins."


class ConfigurationError(Exception):
    """The agent can't start; the text is one sentence for the operator."""


class Secret(str):
    """A bearer token whose ``repr`` doesn't show it, so that it can't slip into a log or a traceback."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(…)"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Checked options. ``feed_url`` is what routers are told; empty, it is made of host and bound port.

    ``state_dir`` is this engine's own directory.
    """

    controlplane_url: str
    agent_token: Secret
    engine_name: str
    link_path: Path
    engine_url: str
    feed_host: str
    feed_port: int
    feed_url: str
    feed_token: Secret
    state_dir: Path
    otlp_endpoint: str
    log_level: str = "INFO"

    @property
    def control_socket_url(self) -> str:
        """``ws`` for ``http``, ``wss`` for ``https``."""
        return f"ws{self.controlplane_url.removeprefix('http')}/ws/agent/"

    def plaintext_token_targets(self) -> list[str]:
        """URLs that would carry the agent token unencrypted over a network."""
        urls = [self.controlplane_url, self.otlp_endpoint]
        return [url for url in urls if url.startswith("http:") and urlsplit(url).hostname not in LOOPBACK_HOSTS]


class Flag(NamedTuple):
    name: str
    help: str
    default: str | None = None

    @property
    def variable(self) -> str:
        return "BACKHAUL_" + self.name.replace("-", "_").upper()


FLAGS = (
    Flag("engine-name", "name of the engine in the fleet"),
    Flag("link-path", "unix socket on which the engine's connector listens"),
    Flag("agent-token-file", "file with the agent's enrolment token, used for the control plane and OTLP"),
    Flag("feed-token-file", "file with the token that routers must show at the lease feed"),
    Flag("state-dir", "directory for the last policy and unsent events; a subdirectory per engine is made in it"),
    Flag("controlplane-url", "base URL of the control plane", "http://127.0.0.1:8000"),
    Flag("engine-url", "URL under which routers reach the engine", "http://127.0.0.1:8100"),
    Flag("feed-host", "address that the lease feed listens on", "127.0.0.1"),
    Flag("feed-port", "port of the lease feed (default: the engine URL's port + 10; 0 takes any free one)"),
    Flag("feed-url", "URL under which routers reach the feed (default: ws://<feed host>:<feed port>/feed)"),
    Flag("otlp-endpoint", "OTLP/HTTP traces endpoint (default: <control plane>/v1/traces)"),
    Flag("log-level", "DEBUG, INFO, WARNING or ERROR", "INFO"),
)


def read_options(arguments: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Flags over environment over defaults. Raises ``ConfigurationError``; ``--help`` exits."""
    flags = vars(_parser().parse_args(arguments))
    raw: dict[str, str] = {}
    for flag in FLAGS:
        given = flags[flag.name.replace("-", "_")]
        value = given if given is not None else environ.get(flag.variable) or flag.default
        if value is not None:
            raw[flag.name] = value
    engine_url = _url("engine-url", raw, ("http", "https"))
    controlplane_url = _url("controlplane-url", raw, ("http", "https"))
    feed_port = _feed_port(raw, engine_url)
    raw.setdefault("otlp-endpoint", f"{controlplane_url}/v1/traces")
    if "feed-url" not in raw and raw["feed-host"] in EVERY_ADDRESS:
        raise ConfigurationError("--feed-url is needed when the feed listens on every address: routers are told it.")
    name = _engine_name(raw)
    return Options(
        controlplane_url=controlplane_url,
        agent_token=_secret("agent-token-file", raw),
        engine_name=name,
        link_path=_link_path(raw),
        engine_url=engine_url,
        feed_host=raw["feed-host"],
        feed_port=feed_port,
        feed_url=_url("feed-url", raw, ("ws", "wss")) if "feed-url" in raw else "",
        feed_token=_secret("feed-token-file", raw),
        state_dir=Path(_required("state-dir", raw)) / f"agent-{name}",
        otlp_endpoint=_url("otlp-endpoint", raw, ("http", "https")),
        log_level=_log_level(raw),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m connector.agent", description=DESCRIPTION, epilog=EPILOG)
    for flag in FLAGS:
        default = f", default {flag.default}" if flag.default else ""
        parser.add_argument(f"--{flag.name}", metavar="VALUE", help=f"{flag.help} [{flag.variable}{default}]")
    return parser


def _required(name: str, raw: Mapping[str, str]) -> str:
    if not raw.get(name):
        flag = next(flag for flag in FLAGS if flag.name == name)
        raise ConfigurationError(f"--{name} or {flag.variable} is missing: the {flag.help}.")
    return raw[name]


def _secret(name: str, raw: Mapping[str, str]) -> Secret:
    """The first line, stripped, of the file."""
    path = Path(_required(name, raw))
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ConfigurationError(f"--{name}: {path} can't be read: {reason}.") from error
    secret = text.partition("\n")[0].strip()
    if not secret or not secret.isascii() or not secret.isprintable():
        raise ConfigurationError(f"--{name}: the first line of {path} holds no token.")
    return Secret(secret)


def _url(name: str, raw: Mapping[str, str], schemes: tuple[str, ...]) -> str:
    value = raw[name]
    try:
        parts = urlsplit(value)
        valid = parts.scheme in schemes and bool(parts.hostname) and (parts.port is None or parts.port >= 0)
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(f"--{name}: {value!r} is not a URL that starts with {' or '.join(schemes)}.")
    return value.rstrip("/")


def _feed_port(raw: Mapping[str, str], engine_url: str) -> int:
    engine = urlsplit(engine_url)
    default = (engine.port or (443 if engine.scheme == "https" else 80)) + 10
    value = raw.get("feed-port", str(default))
    if not value.isdecimal() or int(value) > 65535:
        raise ConfigurationError(f"--feed-port: {value!r} is not a port from 0 to 65535.")
    return int(value)


def _engine_name(raw: Mapping[str, str]) -> str:
    name = _required("engine-name", raw)
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"--engine-name: {name!r} must be 1 to 128 letters, digits, dots, dashes or underscores."
        )
    return name


def _link_path(raw: Mapping[str, str]) -> Path:
    """The socket need not exist yet: the engine may start later."""
    path = Path(_required("link-path", raw))
    if len(str(path).encode()) > MAX_LINK_PATH_BYTES:
        raise ConfigurationError(f"--link-path: {path} is longer than a unix socket's {MAX_LINK_PATH_BYTES} bytes.")
    if path.exists() and not path.is_socket():
        raise ConfigurationError(f"--link-path: {path} exists and is not a socket.")
    return path


def _log_level(raw: Mapping[str, str]) -> str:
    level = raw["log-level"].upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ConfigurationError(f"--log-level: {raw['log-level']!r} is not DEBUG, INFO, WARNING or ERROR.")
    return level
