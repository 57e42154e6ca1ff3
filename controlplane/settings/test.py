"""Settings for tests: Postgres and Redis of the environment, or throw-away ones that ``tests/`` starts."""

import secrets
import socket
import tempfile
from pathlib import Path

from controlplane import environment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


THROWAWAY_FOLDER = Path(tempfile.gettempdir()) / f"backhaul-tests-{secrets.token_hex(8)}"
THROWAWAY_PASSWORD = secrets.token_hex(16)
POSTGRES_PORT, REDIS_PORT = _free_port(), _free_port()
HAS_THROWAWAY_SERVERS = environment.use_defaults(
    {
        "BACKHAUL_DATABASE_URL": f"postgresql://postgres:{THROWAWAY_PASSWORD}@127.0.0.1:{POSTGRES_PORT}/postgres",
        "BACKHAUL_REDIS_URL": f"redis://127.0.0.1:{REDIS_PORT}/0",
    }
)
with tempfile.NamedTemporaryFile("w") as _secret_key:
    _secret_key.write(secrets.token_hex(32))
    _secret_key.flush()
    environment.use_defaults({"BACKHAUL_SECRET_KEY_FILE": _secret_key.name})
    from controlplane.settings import base

globals().update({name: getattr(base, name) for name in dir(base) if name.isupper()})

# Bound by name as well, so that the type checker knows the settings that are our own.
LOCAL_APPS: list[str] = base.LOCAL_APPS
REDIS_URL, FRONTEND_DIST = base.REDIS_URL, base.FRONTEND_DIST
TRACE_RETENTION_HOURS, OTLP_ENDPOINT = base.TRACE_RETENTION_HOURS, base.OTLP_ENDPOINT

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
