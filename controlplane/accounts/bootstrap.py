"""Makes the secrets of a run directory valid: what a first start needs, and every later one repeats."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from controlplane.accounts.actions import ensure_login, register_router_key, register_token
from controlplane.accounts.models import TokenKind
from controlplane.accounts.secrets import new_password, new_secret

ACTOR = "system:bootstrap"
ADMIN_NAME = "admin"
DEFAULT_TENANT = "default"
TOKEN_FILES = (
    ("admin-token", TokenKind.ADMIN),
    ("agent-token", TokenKind.AGENT),
    ("router-token", TokenKind.ROUTER),
)


def bootstrap(run_dir: Path) -> Iterator[str]:
    """Yields a line for each secret. A file that exists keeps its secret; a missing one is made, 0600.

    Raises ``ValueError`` with one sentence for a file that can't be used.
    """
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, kind in TOKEN_FILES:
        secret, was_made = _secret(run_dir / name, partial(new_secret, kind))
        registered = register_token(kind=kind, name=name, secret=secret, actor=ACTOR, auto_approve=True)
        yield _line(name, was_made, registered)
    secret, was_made = _secret(run_dir / "api-key", partial(new_secret, "api"))
    registered = register_router_key(tenant=DEFAULT_TENANT, name="api-key", secret=secret, actor=ACTOR)
    yield _line("api-key", was_made, registered)
    login, was_made = _secret(run_dir / "admin-login", lambda: f"{ADMIN_NAME} {new_password()}")
    username, _, password = login.partition(" ")
    if not username or not password:
        raise ValueError(f"{run_dir / 'admin-login'} must hold a name and a password, separated by a space")
    yield _line("admin-login", was_made, ensure_login(username=username, password=password, actor=ACTOR))


def _line(name: str, was_made: bool, was_registered: bool) -> str:
    return f"{name}: {'made' if was_made else 'kept'}, {'registered' if was_registered else 'already registered'}"


def _secret(path: Path, make: Callable[[], str]) -> tuple[str, bool]:
    """The first line of the file, and whether it was made just now. Two starts at once agree on one secret."""
    was_made = False
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        path.chmod(0o600)
    else:
        was_made = True
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{make()}\n")
    secret = path.read_text().partition("\n")[0].strip()
    if not secret:
        raise ValueError(f"{path} is empty; remove it and start again")
    return secret, was_made
