"""Settings that lie in files, read at start and followed from then on."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from connector.http import client_context, server_context
from connector.router.live import Fixed, LiveFiles, Refreshed, Source
from connector.router.secretfiles import read_secret
from connector.signing import FleetKeyFile

T = TypeVar("T")

Raw = Mapping[str, str | None]


class ConfigurationError(Exception):
    """The router cannot start; the message is one sentence for the operator."""


@dataclass(frozen=True)
class Files:
    """By the names that ``Settings`` has for them."""

    router_token: Source[str]
    engine_key: Source[str]
    feed_token: Source[str]
    fleet_key: FleetKeyFile
    tls: Source[ssl.SSLContext] | None
    engine_tls: Source[ssl.SSLContext] | None
    log_level: Source[str]
    live: tuple[Refreshed, ...]


def read_files(raw: Raw) -> Files:
    """Raises ``ConfigurationError``."""
    token, key, feed = (secret(raw, name) for name in ("ROUTER_TOKEN_FILE", "ENGINE_KEY_FILE", "FEED_TOKEN_FILE"))
    signing, own, engines, level = fleet_key(raw), tls(raw), engine_tls(raw), log_level(raw)
    given = (signing, token, key, feed, own, engines, level)
    live = tuple(one for one in given if isinstance(one, FleetKeyFile | LiveFiles))
    return Files(token, key, feed, signing, own, engines, level, live)


def text(raw: Raw, name: str) -> str:
    value = raw[name]
    if not value:
        raise ConfigurationError(f"BACKHAUL_{name} is not set and has no default.")
    return value


def secret(raw: Raw, name: str) -> LiveFiles[str]:
    path = Path(text(raw, name))
    what = name.removesuffix("_FILE").lower().replace("_", " ")
    return _live(name, what, (path,), lambda: read_secret(path))


def fleet_key(raw: Raw) -> FleetKeyFile:
    path = Path(text(raw, "FLEET_KEY_FILE"))
    try:
        return FleetKeyFile(path)
    except OSError as error:
        raise ConfigurationError(f"BACKHAUL_FLEET_KEY_FILE: {path} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise ConfigurationError(f"BACKHAUL_FLEET_KEY_FILE: {error}.") from None


def log_level(raw: Raw) -> Source[str]:
    if raw["LOG_LEVEL_FILE"]:
        path = Path(raw["LOG_LEVEL_FILE"])
        return _live("LOG_LEVEL_FILE", "log level", (path,), lambda: _level(read_secret(path)))
    try:
        return Fixed(_level(text(raw, "LOG_LEVEL")))
    except ValueError as error:
        raise ConfigurationError(f"BACKHAUL_LOG_LEVEL: {error}.") from None


def _level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ValueError("the log level must be DEBUG, INFO, WARNING or ERROR")
    return text.upper()


def tls(raw: Raw) -> LiveFiles[ssl.SSLContext] | None:
    cert, key = raw["ROUTER_TLS_CERT_FILE"], raw["ROUTER_TLS_KEY_FILE"]
    if not cert and not key:
        return None
    if not cert or not key:
        raise ConfigurationError("BACKHAUL_ROUTER_TLS_CERT_FILE and BACKHAUL_ROUTER_TLS_KEY_FILE go together.")
    cert_file, key_file = Path(cert), Path(key)
    return _live(
        "ROUTER_TLS_CERT_FILE", "certificate", (cert_file, key_file), lambda: server_context(cert_file, key_file)
    )


def engine_tls(raw: Raw) -> LiveFiles[ssl.SSLContext] | None:
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
