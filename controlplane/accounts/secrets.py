"""How secrets look and how they are kept: ``bh_<kind>_<43 characters>``, stored as SHA-256 only.

The secrets have 256 random bits, so a plain hash can't be searched; a slow one would only slow each request.
"""

import hashlib
import re
import secrets

MAX_SECRET_CHARS = 512
SECRET_PATTERN = re.compile(r"^bh_[a-z]+_[A-Za-z0-9_-]{43}$")


def new_secret(kind: str) -> str:
    return f"bh_{kind}_{secrets.token_urlsafe(32)}"


def sha256_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def bearer_secret(authorization: str) -> str | None:
    """The secret of an ``Authorization: Bearer`` header, or ``None``. Over-long input is never hashed."""
    scheme, _, secret = authorization.partition(" ")
    secret = secret.strip()
    return secret if scheme.lower() == "bearer" and 0 < len(secret) <= MAX_SECRET_CHARS else None


def new_password() -> str:
    return secrets.token_urlsafe(18)
