"""The only reader of the launcher's environment: typed, or one sentence that says which variable is wrong."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from deploy.local.console import StackError
from deploy.local.layout import Layout

MAX_ENGINES_PER_ROLE = 8
"""Engines of a role take consecutive ports and their agents' feeds the same ports + 10."""

FEED_PORT_OFFSET = 10
DECODE_NIXL_OFFSET = 50


@dataclass(frozen=True, kw_only=True)
class Ports:
    """First port of each part; engines and their agents count up from ``prefill`` and ``decode``."""

    controlplane: int
    router: int
    prefill: int
    decode: int
    nixl: int
    postgres: int
    valkey: int


@dataclass(frozen=True, kw_only=True)
class Options:
    layout: Layout
    ports: Ports
    num_prefill: int
    num_decode: int
    has_prefill_prefix_cache: bool
    database_url: str
    redis_url: str
    torch_index_url: str
    log_level: str
    trace_retention_hours: str

    @property
    def has_own_postgres(self) -> bool:
        return not self.database_url

    @property
    def has_own_valkey(self) -> bool:
        return not self.redis_url

    @property
    def controlplane_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.controlplane}"

    @property
    def router_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.router}"


DEFAULT_PORTS = {
    "controlplane": 8000,
    "router": 8080,
    "prefill": 8100,
    "decode": 8200,
    "nixl": 5600,
    "postgres": 15432,
    "valkey": 16379,
}


def read_options(variables: Mapping[str, str], root: Path) -> Options:
    """Raises ``StackError`` with one sentence."""
    offset = _integer(variables, "BACKHAUL_PORT_OFFSET", default=0, low=0, high=40000)
    run = Path(variables.get("BACKHAUL_RUN_DIR") or root / ".run")
    return Options(
        layout=Layout(root=root, run=run if run.is_absolute() else root / run),
        ports=Ports(**{name: _port(variables, name, port + offset) for name, port in DEFAULT_PORTS.items()}),
        num_prefill=_integer(variables, "P", default=1, low=1, high=MAX_ENGINES_PER_ROLE),
        num_decode=_integer(variables, "D", default=1, low=1, high=MAX_ENGINES_PER_ROLE),
        has_prefill_prefix_cache=_integer(variables, "P_PREFIX_CACHE", default=0, low=0, high=1) == 1,
        database_url=_url(variables, "BACKHAUL_DATABASE_URL", ("postgres://", "postgresql://")),
        redis_url=_url(variables, "BACKHAUL_REDIS_URL", ("redis://", "rediss://", "unix://")),
        torch_index_url=_url(variables, "BACKHAUL_TORCH_INDEX_URL", ("https://", "http://", "file://")),
        log_level=variables.get("BACKHAUL_LOG_LEVEL") or "INFO",
        trace_retention_hours=variables.get("BACKHAUL_TRACE_RETENTION_HOURS") or "24",
    )


def _port(variables: Mapping[str, str], name: str, default: int) -> int:
    return _integer(variables, f"BACKHAUL_{name.upper()}_PORT", default=default, low=1024, high=65000)


def _integer(variables: Mapping[str, str], name: str, *, default: int, low: int, high: int) -> int:
    text = variables.get(name) or str(default)
    if not text.isdecimal() or not low <= int(text) <= high:
        raise StackError(f"{name} must be a whole number from {low} to {high}, not {text!r}.")
    return int(text)


def _url(variables: Mapping[str, str], name: str, schemes: tuple[str, ...]) -> str:
    value = variables.get(name, "").strip()
    if value and not value.startswith(schemes):
        raise StackError(f"{name} must start with {' or '.join(schemes)}.")
    return value
