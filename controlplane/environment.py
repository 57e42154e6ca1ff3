"""The only reader of the process environment: typed, and refused at start with one sentence.

Variables are documented in README's list. ``*_FILE`` names a file whose first line is the secret, so that no secret
shows in a process list.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

MIN_SECRET_KEY_CHARS = 32
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class InvalidEnvironmentError(Exception):
    """One sentence that names the variable and what to do about it."""


class DatabaseAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A Postgres address; ``options`` go to libpq unchanged (``sslmode``, ``connect_timeout``)."""

    host: str
    port: int
    name: str
    user: str
    password: str
    options: dict[str, str]


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    database: DatabaseAddress
    redis_url: str
    secret_key: str
    allowed_hosts: tuple[str, ...]
    frontend_dist: Path
    trace_retention_hours: int
    pool_size: int
    behind_tls: bool
    log_level: str
    otlp_endpoint: str


def read_environment(variables: Mapping[str, str]) -> Environment:
    """The whole configuration of a control plane process, or ``InvalidEnvironmentError``."""
    return Environment(
        database=_database(_required(variables, "BACKHAUL_DATABASE_URL")),
        redis_url=_redis(_required(variables, "BACKHAUL_REDIS_URL")),
        secret_key=_secret_key(_required(variables, "BACKHAUL_SECRET_KEY_FILE")),
        allowed_hosts=_hosts(variables.get("BACKHAUL_ALLOWED_HOSTS", "127.0.0.1,localhost")),
        frontend_dist=Path(variables.get("BACKHAUL_FRONTEND_DIST", "frontend/dist")).resolve(),
        trace_retention_hours=_integer(variables, "BACKHAUL_TRACE_RETENTION_HOURS", default=24, low=1, high=24 * 365),
        pool_size=_integer(variables, "BACKHAUL_DATABASE_POOL", default=16, low=2, high=200),
        behind_tls=_boolean(variables, "BACKHAUL_TLS"),
        log_level=_choice(variables, "BACKHAUL_LOG_LEVEL", default="INFO", choices=LOG_LEVELS),
        otlp_endpoint=variables.get("BACKHAUL_OTLP_ENDPOINT", ""),
    )


def current() -> Environment:
    return read_environment(os.environ)


def use_defaults(defaults: Mapping[str, str]) -> bool:
    """Fills in unset variables, for this process and its children; True when all of ``defaults`` were needed.

    For test settings, whose servers are started after the settings were read.
    """
    if any(name in os.environ for name in defaults):
        return False
    os.environ.update(defaults)
    return True


def _required(variables: Mapping[str, str], name: str) -> str:
    value = variables.get(name, "").strip()
    if not value:
        raise InvalidEnvironmentError(f"{name} is not set; README lists the variables that the control plane needs.")
    return value


def _database(url: str) -> DatabaseAddress:
    parts = _split("BACKHAUL_DATABASE_URL", url, ("postgres", "postgresql"))
    options = dict(parse_qsl(parts.query))
    name = unquote(parts.path.lstrip("/"))
    if not name:
        raise InvalidEnvironmentError(
            "BACKHAUL_DATABASE_URL names no database; write postgresql://user@host:5432/name."
        )
    return DatabaseAddress(
        host=options.pop("host", parts.hostname or ""),
        port=parts.port or 5432,
        name=name,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        options=options,
    )


def _redis(url: str) -> str:
    _split("BACKHAUL_REDIS_URL", url, ("redis", "rediss", "unix"))
    return url


def _split(variable: str, url: str, schemes: tuple[str, ...]) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidEnvironmentError(f"{variable} is not a URL: {error}.") from None
    if parts.scheme not in schemes or port == 0:
        raise InvalidEnvironmentError(f"{variable} must be a URL that starts with {schemes[-1]}://.")
    return parts


def _secret_key(path: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise InvalidEnvironmentError(f"BACKHAUL_SECRET_KEY_FILE can't be read: {error.strerror or error}.") from None
    key = lines[0].strip() if lines else ""
    if len(key) < MIN_SECRET_KEY_CHARS:
        raise InvalidEnvironmentError(f"BACKHAUL_SECRET_KEY_FILE holds fewer than {MIN_SECRET_KEY_CHARS} characters.")
    return key


def _hosts(value: str) -> tuple[str, ...]:
    hosts = tuple(host.strip() for host in value.split(",") if host.strip())
    if not hosts or "*" in hosts:
        raise InvalidEnvironmentError("BACKHAUL_ALLOWED_HOSTS must list host names, separated by commas, without *.")
    return hosts


def _integer(variables: Mapping[str, str], name: str, *, default: int, low: int, high: int) -> int:
    text = variables.get(name, str(default))
    if not text.strip().isdecimal() or not low <= int(text) <= high:
        raise InvalidEnvironmentError(f"{name} must be a whole number from {low} to {high}, not {text!r}.")
    return int(text)


def _boolean(variables: Mapping[str, str], name: str) -> bool:
    return _choice(variables, name, default="0", choices=("0", "1")) == "1"


def _choice(variables: Mapping[str, str], name: str, *, default: str, choices: tuple[str, ...]) -> str:
    value = variables.get(name, default)
    if value not in choices:
        raise InvalidEnvironmentError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
    return value
