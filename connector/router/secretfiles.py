"""Secrets that lie in files: the first line of each."""

from pathlib import Path

from connector.http import Headers
from connector.router.live import Source


def read_secret(path: Path) -> str:
    """Raises ``OSError``, and ``ValueError`` for what can't stand in a header field; without the content."""
    try:
        secret = path.read_text(encoding="ascii").partition("\n")[0].strip()
    except UnicodeDecodeError:
        raise ValueError(f"{path} holds more than printable ASCII") from None
    if not secret:
        raise ValueError(f"the first line of {path} is empty")
    if not secret.isprintable():
        raise ValueError(f"{path} holds more than printable ASCII")
    return secret


def bearing(secret: Source[str]) -> Headers:
    """The fields by which whoever holds it shows that now."""
    return Headers.of({"Authorization": f"Bearer {secret.current}"})
