"""The router's settings: the only reader of its environment variables and flags."""

import argparse
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from connector.http import client_context, server_context
from connector.router.live import Fixed, LiveFiles, Refreshed, Source
from connector.router.secretfiles import read_secret
from connector.signing import FleetKeyFile, FleetKeySource

T = TypeVar("T")

NAME_PATTERN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")


class ConfigurationError(Exception):
    """The router cannot start; the message is one sentence for the operator."""


@dataclass(frozen=True)
class Settings:
    """Validated once at start. Durations in seconds, sizes in bytes. ``state_dir`` is this router's own directory.
    ``tls``: what clients are served by, plain HTTP if absent; ``engine_tls``: what engines are trusted by. ``live`` is
    what follows its files."""

    controlplane_url: str
    router_name: str
    router_token: Source[str]
    host: str
    port: int
    engine_key: Source[str]
    feed_token: Source[str]
    fleet_key: FleetKeySource
    state_dir: Path
    otlp_endpoint: str
    max_body_bytes: int = 32 * 1024 * 1024
    drain_seconds: float = 30.0
    engine_timeout_seconds: float = 600.0
    probe_seconds: float = 5.0
    stall_seconds: float = 30.0
    index_turns: int = 1_000_000
    index_bytes: int = 1 << 30
    tenant_share: float = 1.0
    max_turns: int = 4096
    max_tenant_turns: int = 0
    max_engine_legs: int = 0
    redis_url: str = field(default="", repr=False)
    tls: Source[ssl.SSLContext] | None = None
    engine_tls: Source[ssl.SSLContext] | None = None
    live: tuple[Refreshed, ...] = ()
    log_level: Source[str] = Fixed("INFO")  # noqa: RUF009 - never changes


@dataclass(frozen=True)
class Option:
    """One setting: flag ``--router-name`` and variable ``BACKHAUL_ROUTER_NAME`` share the name."""

    name: str
    default: str | None
    text: str

    @property
    def flag(self) -> str:
        return "--" + self.name.lower().replace("_", "-")

    @property
    def variable(self) -> str:
        return f"BACKHAUL_{self.name}"


OPTIONS = (
    Option("CONTROLPLANE_URL", "http://127.0.0.1:8000", "base URL of the control plane"),
    Option("ROUTER_NAME", socket.gethostname() or "router", "name of this router in the fleet"),
    Option("ROUTER_TOKEN_FILE", None, "file with the router's enrolment token"),
    Option("ROUTER_HOST", "127.0.0.1", "address to listen on"),
    Option("ROUTER_PORT", "8080", "port to listen on; 0 picks a free one"),
    Option("ENGINE_KEY_FILE", None, "file with the engines' API key (vLLM --api-key)"),
    Option("FEED_TOKEN_FILE", None, "file with the token of the agents' lease feeds"),
    Option("FLEET_KEY_FILE", None, "file with the fleet key, mode 0600"),
    Option("STATE_DIR", ".run/state", "directory under which routers/<name> keeps the last fleet snapshot and events"),
    Option("OTLP_ENDPOINT", "", "OTLP/HTTP traces URL; default <control plane>/v1/traces; 'none' exports nothing"),
    Option("ROUTER_MAX_BODY_BYTES", str(32 * 1024 * 1024), "largest request body taken"),
    Option("ROUTER_DRAIN_SECONDS", "30", "how long SIGTERM waits for turns in flight"),
    Option("ROUTER_ENGINE_TIMEOUT_SECONDS", "600", "longest silence of an engine within a reply"),
    Option("ROUTER_PROBE_SECONDS", "5", "time between looks at an engine that serves nothing; 0 for none"),
    Option("ROUTER_STALL_SECONDS", "30", "how long a probe of an engine with legs in flight may wait for a token"),
    Option("ROUTER_MAX_TURNS", "4096", "most requests to engines in flight in this process; 0 for no limit"),
    Option("ROUTER_MAX_TENANT_TURNS", "0", "most of them of one tenant; 0 for no limit of its own"),
    Option("ROUTER_MAX_ENGINE_LEGS", "0", "most legs of this process in flight at one engine; 0 for no limit"),
    Option("ROUTER_TLS_CERT_FILE", "", "certificate with its chain, PEM; with it the router speaks TLS only"),
    Option("ROUTER_TLS_KEY_FILE", "", "its key, PEM, readable by nobody else"),
    Option("ENGINE_CA_FILE", "", "authorities that https engines are trusted by, PEM; default: the system's"),
    Option("LOG_LEVEL", "INFO", "DEBUG, INFO, WARNING or ERROR"),
    Option("LOG_LEVEL_FILE", "", "file with the log level instead, followed while the router runs"),
    Option("ROUTER_INDEX_TURNS", "1000000", "most turns remembered for placement"),
    Option("ROUTER_INDEX_BYTES", str(1 << 30), "most memory that they may take"),
    Option("ROUTER_REDIS_URL", "", "Redis through which routers share claims; a flag shows in process lists"),
    Option("ROUTER_TENANT_SHARE", "1", "largest share of both that one tenant may take, above 0 up to 1"),
)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m connector.router",
        description="OpenAI-compatible, KV-cache-aware front of a vLLM prefill/decode fleet.",
        epilog="Every flag is also an environment variable (BACKHAUL_<NAME>); the flag wins.",
    )
    for option in OPTIONS:
        default = f" (default {option.default})" if option.default else ""
        text = f"{option.text} [{option.variable}]{default}".replace("%", "%%")
        parser.add_argument(option.flag, dest=option.name, metavar="VALUE", help=text)
    return parser


def read_settings(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of flags over environment over defaults, or ``ConfigurationError``."""
    flags = vars(build_parser().parse_args(argv))
    source = os.environ if environ is None else environ
    raw = {o.name: flags[o.name] or source.get(o.variable) or o.default for o in OPTIONS}
    controlplane_url = _url(raw, "CONTROLPLANE_URL")
    endpoint = raw["OTLP_ENDPOINT"] or f"{controlplane_url}/v1/traces"
    if endpoint == "none":
        endpoint = ""
    router_name = _name(raw, "ROUTER_NAME")
    router_token, engine_key, feed_token = (
        _secret(raw, name) for name in ("ROUTER_TOKEN_FILE", "ENGINE_KEY_FILE", "FEED_TOKEN_FILE")
    )
    fleet_key, log_level, tls, engine_tls = _fleet_key(raw), _log_level(raw), _tls(raw), _engine_tls(raw)
    live = (fleet_key, router_token, engine_key, feed_token, tls, engine_tls, log_level)
    return Settings(
        controlplane_url=controlplane_url,
        router_name=router_name,
        router_token=router_token,
        host=_host(raw, "ROUTER_HOST"),
        port=int(_number(raw, "ROUTER_PORT", 0, 65535)),
        engine_key=engine_key,
        feed_token=feed_token,
        fleet_key=fleet_key,
        state_dir=Path(_text(raw, "STATE_DIR")) / "routers" / router_name,
        otlp_endpoint=endpoint,
        max_body_bytes=int(_number(raw, "ROUTER_MAX_BODY_BYTES", 1024, 1 << 30)),
        drain_seconds=_number(raw, "ROUTER_DRAIN_SECONDS", 0, 3600),
        engine_timeout_seconds=_number(raw, "ROUTER_ENGINE_TIMEOUT_SECONDS", 1, 86400),
        probe_seconds=_number(raw, "ROUTER_PROBE_SECONDS", 0, 3600),
        stall_seconds=_number(raw, "ROUTER_STALL_SECONDS", 1, 3600),
        index_turns=int(_number(raw, "ROUTER_INDEX_TURNS", 100, 10_000_000)),
        index_bytes=int(_number(raw, "ROUTER_INDEX_BYTES", 1 << 20, 1 << 40)),
        tenant_share=_number(raw, "ROUTER_TENANT_SHARE", 0.001, 1),
        max_turns=int(_number(raw, "ROUTER_MAX_TURNS", 0, 1_000_000)),
        max_tenant_turns=int(_number(raw, "ROUTER_MAX_TENANT_TURNS", 0, 1_000_000)),
        max_engine_legs=int(_number(raw, "ROUTER_MAX_ENGINE_LEGS", 0, 1_000_000)),
        redis_url=_redis_url(raw),
        tls=tls,
        engine_tls=engine_tls,
        live=tuple(one for one in live if isinstance(one, FleetKeyFile | LiveFiles)),
        log_level=log_level,
    )


def _text(raw: Mapping[str, str | None], name: str) -> str:
    value = raw[name]
    if not value:
        raise ConfigurationError(f"BACKHAUL_{name} is not set and has no default.")
    return value


def _name(raw: Mapping[str, str | None], name: str) -> str:
    value = _text(raw, name)
    if not NAME_PATTERN.fullmatch(value):
        raise ConfigurationError(f"BACKHAUL_{name} must be 1-128 letters, digits, dots, dashes or underscores.")
    return value


def _number(raw: Mapping[str, str | None], name: str, lowest: float, highest: float) -> float:
    value = _text(raw, name)
    try:
        number = float(value)
    except ValueError:
        raise ConfigurationError(f"BACKHAUL_{name} must be a number, not {value!r}.") from None
    if not lowest <= number <= highest:
        raise ConfigurationError(f"BACKHAUL_{name} must be between {lowest} and {highest}.")
    return number


def _url(raw: Mapping[str, str | None], name: str) -> str:
    value = _text(raw, name).rstrip("/")
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigurationError(f"BACKHAUL_{name} must be an http or https URL, not {value!r}.")
    return value


def _redis_url(raw: Mapping[str, str | None]) -> str:
    """Empty for none. What was given may hold a password, so no error quotes it."""
    value = raw["ROUTER_REDIS_URL"] or ""
    try:
        parts = urlsplit(value)
        is_server = parts.scheme in ("redis", "rediss") and bool(parts.hostname) and parts.port != 0
        database = parts.path.strip("/")
    except ValueError:
        raise ConfigurationError("BACKHAUL_ROUTER_REDIS_URL is no URL.") from None
    if not value or (is_server and (not database or database.isdecimal())) or (parts.scheme == "unix" and parts.path):
        return value
    raise ConfigurationError("BACKHAUL_ROUTER_REDIS_URL must be redis://, rediss:// or unix://, or empty.")


def _log_level(raw: Mapping[str, str | None]) -> Source[str]:
    if raw["LOG_LEVEL_FILE"]:
        path = Path(raw["LOG_LEVEL_FILE"])
        return _live("LOG_LEVEL_FILE", "log level", (path,), lambda: _level(read_secret(path)))
    try:
        return Fixed(_level(_text(raw, "LOG_LEVEL")))
    except ValueError as error:
        raise ConfigurationError(f"BACKHAUL_LOG_LEVEL: {error}.") from None


def _level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ValueError("the log level must be DEBUG, INFO, WARNING or ERROR")
    return text.upper()


def _host(raw: Mapping[str, str | None], name: str) -> str:
    value = _text(raw, name).strip("[]")
    try:
        ipaddress.ip_address(value)
    except ValueError:
        if not NAME_PATTERN.fullmatch(value):
            raise ConfigurationError(f"BACKHAUL_{name} must be an address or a host name, not {value!r}.") from None
    return value


def _secret(raw: Mapping[str, str | None], name: str) -> LiveFiles[str]:
    path = Path(_text(raw, name))
    what = name.removesuffix("_FILE").lower().replace("_", " ")
    return _live(name, what, (path,), lambda: read_secret(path))


def _fleet_key(raw: Mapping[str, str | None]) -> FleetKeyFile:
    path = Path(_text(raw, "FLEET_KEY_FILE"))
    try:
        return FleetKeyFile(path)
    except OSError as error:
        raise ConfigurationError(f"BACKHAUL_FLEET_KEY_FILE: {path} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise ConfigurationError(f"BACKHAUL_FLEET_KEY_FILE: {error}.") from None


def _tls(raw: Mapping[str, str | None]) -> LiveFiles[ssl.SSLContext] | None:
    cert, key = raw["ROUTER_TLS_CERT_FILE"], raw["ROUTER_TLS_KEY_FILE"]
    if not cert and not key:
        return None
    if not cert or not key:
        raise ConfigurationError("BACKHAUL_ROUTER_TLS_CERT_FILE and BACKHAUL_ROUTER_TLS_KEY_FILE go together.")
    cert_file, key_file = Path(cert), Path(key)
    return _live(
        "ROUTER_TLS_CERT_FILE", "certificate", (cert_file, key_file), lambda: server_context(cert_file, key_file)
    )


def _engine_tls(raw: Mapping[str, str | None]) -> LiveFiles[ssl.SSLContext] | None:
    if not raw["ENGINE_CA_FILE"]:
        return None
    path = Path(raw["ENGINE_CA_FILE"])
    return _live("ENGINE_CA_FILE", "engine authorities", (path,), lambda: client_context(path))


def _live(name: str, what: str, paths: tuple[Path, ...], load: Callable[[], T]) -> LiveFiles[T]:
    try:
        return LiveFiles(what, paths, load)
    except OSError as error:
        raise ConfigurationError(f"BACKHAUL_{name}: {error.filename} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise ConfigurationError(f"BACKHAUL_{name}: {error}.") from None
