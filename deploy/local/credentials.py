"""Secrets of one stack: made once, one file each, 0600 in the run directory. A file that exists is never changed."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from deploy.local.console import StackError


def token(kind: str) -> str:
    """``bh_<kind>_`` and 256 random bits in 43 URL-safe characters."""
    return f"bh_{kind}_{secrets.token_urlsafe(32)}"


FILES: dict[str, Callable[[], str]] = {
    "admin-token": lambda: token("admin"),
    "admin-login": lambda: f"admin {secrets.token_urlsafe(18)}",
    "api-key": lambda: token("api"),
    "engine-key": lambda: token("engine"),
    "agent-token": lambda: token("agent"),
    "router-token": lambda: token("router"),
    "feed-token": lambda: token("feed"),
    "fleet.key": lambda: f"k1 {secrets.token_hex(32)}",
    "secret-key": lambda: secrets.token_urlsafe(64),
    "postgres-password": lambda: secrets.token_urlsafe(24),
    "valkey-password": lambda: secrets.token_urlsafe(24),
    "valkey-router-password": lambda: secrets.token_urlsafe(24),
}


def make_missing(run: Path) -> list[str]:
    """Names of the files that were made."""
    made = [name for name, secret in FILES.items() if _write_new(run / name, secret())]
    for name in FILES:
        if not read(run / name):
            raise StackError(f"{run / name} is empty; remove it and run make up again.")
    return made


def read(path: Path) -> str:
    """The first line, stripped."""
    try:
        return path.read_text().partition("\n")[0].strip()
    except OSError as error:
        raise StackError(f"{path} can't be read: {error.strerror}.") from error


def _write_new(path: Path, secret: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        path.chmod(0o600)
        return False
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secret}\n")
    return True
