"""What an operator configures in ``--kv-transfer-config``, parsed once into a typed value."""

import re
from pathlib import Path
from typing import Any, Protocol

import msgspec

from connector.protocol import PolicyValues

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MAX_SOCKET_PATH_BYTES = 107
"""Linux's limit for the path of a unix socket."""
MAX_PAUSE_MS = 1000.0
"""A longer pause between polls would rather look like a hang."""
MAX_POLICY_WAIT_SECONDS = 300.0
"""vLLM's own API server gives its engine core ten minutes to start."""


class TransferConfig(Protocol):
    """The part of vLLM's ``KVTransferConfig`` that we read."""

    kv_role: str | None
    kv_load_failure_policy: str

    def get_from_extra_config(self, key: str, default: Any) -> Any: ...


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Start-up options. Keys of ``kv_connector_extra_config`` carry the prefix ``backhaul_``."""

    engine_name: str
    link_path: Path
    fleet_key_file: Path
    is_prefill: bool
    idle_poll_ms: float
    idle_wait_ms: float
    cpu_yield_ms: float
    policy: PolicyValues
    policy_wait_seconds: float = 0.0


def parse_options(config: TransferConfig, *, is_cpu: bool) -> EngineOptions:
    """Raises ``ValueError`` with one sentence that tells the operator what to set."""
    name = str(_required(config, "backhaul_engine_name"))
    if not NAME_PATTERN.fullmatch(name):
        raise ValueError("backhaul_engine_name may hold letters, digits, dot, dash and underscore only")
    link_path = Path(str(_required(config, "backhaul_link_path")))
    if len(str(link_path).encode()) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"backhaul_link_path is longer than {MAX_SOCKET_PATH_BYTES} bytes: {link_path}")
    if config.kv_role not in ("kv_producer", "kv_consumer"):
        raise ValueError("kv_role must be kv_producer (prefill) or kv_consumer (decode)")
    if config.kv_load_failure_policy != "recompute":
        raise ValueError("kv_load_failure_policy must be recompute: a declined pull is never an error to the user")
    if not config.get_from_extra_config("bidirectional_kv_xfer", False):
        raise ValueError("bidirectional_kv_xfer must be true at start; turn reuse off by policy instead")
    return EngineOptions(
        engine_name=name,
        link_path=link_path,
        fleet_key_file=Path(str(_required(config, "backhaul_fleet_key_file"))),
        is_prefill=config.kv_role == "kv_producer",
        idle_poll_ms=_number(config, "backhaul_idle_poll_ms", 5.0 if is_cpu else 0.0, MAX_PAUSE_MS),
        idle_wait_ms=_number(config, "backhaul_idle_wait_ms", 20.0 if is_cpu else 0.0, MAX_PAUSE_MS),
        cpu_yield_ms=_number(config, "backhaul_cpu_yield_ms", 0.1 if is_cpu else 0.0, MAX_PAUSE_MS),
        policy=_initial_policy(config),
        policy_wait_seconds=_number(config, "backhaul_policy_wait_seconds", 5.0, MAX_POLICY_WAIT_SECONDS),
    )


def _required(config: TransferConfig, key: str) -> Any:
    value = config.get_from_extra_config(key, None)
    if value in (None, ""):
        raise ValueError(f"kv_connector_extra_config lacks {key}")
    return value


def _number(config: TransferConfig, key: str, default: float, highest: float) -> float:
    value = config.get_from_extra_config(key, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= highest:
        raise ValueError(f"{key} must be a number from 0 to {highest:g}, not {value!r:.80}")
    return float(value)


def _initial_policy(config: TransferConfig) -> PolicyValues:
    """The engine's own start-up constants hold until the agent hands over the first revision."""
    given = {
        field: value
        for field in PolicyValues.__struct_fields__
        if (value := config.get_from_extra_config(field, None)) is not None
    }
    return msgspec.convert(given, PolicyValues)
