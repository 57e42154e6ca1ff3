"""The router's settings: the only reader of its environment variables and flags."""

import argparse
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from connector.router import settingfiles
from connector.router.live import Fixed, Refreshed, Source
from connector.router.settingfiles import ConfigurationError
from connector.signing import FleetKeySource

NAME_PATTERN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")


@dataclass(frozen=True)
class Settings:
    """Validated once at start. Durations in seconds, sizes in bytes. ``state_dir`` is this router's own directory.
    ``tls``: what clients are served by, plain HTTP if absent; ``engine_tls``: what engines are trusted by. ``live`` is
    what follows its files. ``process_number``: which of ``processes`` this is, absent in the one that starts them."""

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
    processes: int = 1
    process_number: int | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
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
    Option("ROUTER_PROCESSES", "1", "router processes that share the port; each has its own name, <name>-<number>"),
    Option("ROUTER_PROCESS_NUMBER", "", "which of them this is; the router sets it itself"),
    Option("ROUTER_METRICS_HOST", "127.0.0.1", "address of the port for metrics and health"),
    Option("ROUTER_METRICS_PORT", "", "port for metrics and health alone, of process number n this + n; 0: any"),
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
    number, metrics_port = _number_or_none(raw, "ROUTER_PROCESS_NUMBER", 63), _metrics_port(raw)
    router_name = _name(raw, "ROUTER_NAME", "" if number is None else f"-{number}")
    return Settings(
        **vars(settingfiles.read_files(raw)),
        controlplane_url=controlplane_url,
        router_name=router_name,
        host=_host(raw, "ROUTER_HOST"),
        port=int(_number(raw, "ROUTER_PORT", 0, 65535)),
        state_dir=Path(settingfiles.text(raw, "STATE_DIR")) / "routers" / router_name,
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
        processes=int(_number(raw, "ROUTER_PROCESSES", 1, 64)),
        process_number=number,
        metrics_host=_host(raw, "ROUTER_METRICS_HOST"),
        metrics_port=metrics_port + (number or 0) if metrics_port else metrics_port,
    )


def _metrics_port(raw: Mapping[str, str | None]) -> int | None:
    port, processes = _number_or_none(raw, "ROUTER_METRICS_PORT", 65535 - 63), _number(raw, "ROUTER_PROCESSES", 1, 64)
    if port is None and processes > 1:
        raise ConfigurationError("BACKHAUL_ROUTER_METRICS_PORT must be set where BACKHAUL_ROUTER_PROCESSES is above 1.")
    return port


def _number_or_none(raw: Mapping[str, str | None], name: str, highest: int) -> int | None:
    return int(_number(raw, name, 0, highest)) if raw[name] else None


def _name(raw: Mapping[str, str | None], name: str, suffix: str) -> str:
    value = settingfiles.text(raw, name) + suffix
    if not NAME_PATTERN.fullmatch(value):
        raise ConfigurationError(f"BACKHAUL_{name} must be 1-128 letters, digits, dots, dashes or underscores.")
    return value


def _number(raw: Mapping[str, str | None], name: str, lowest: float, highest: float) -> float:
    value = settingfiles.text(raw, name)
    try:
        number = float(value)
    except ValueError:
        raise ConfigurationError(f"BACKHAUL_{name} must be a number, not {value!r}.") from None
    if not lowest <= number <= highest:
        raise ConfigurationError(f"BACKHAUL_{name} must be between {lowest} and {highest}.")
    return number


def _url(raw: Mapping[str, str | None], name: str) -> str:
    value = settingfiles.text(raw, name).rstrip("/")
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


def _host(raw: Mapping[str, str | None], name: str) -> str:
    value = settingfiles.text(raw, name).strip("[]")
    try:
        ipaddress.ip_address(value)
    except ValueError:
        if not NAME_PATTERN.fullmatch(value):
            raise ConfigurationError(f"BACKHAUL_{name} must be an address or a host name, not {value!r}.") from None
    return value
