"""Fleet key: signs what engines and routers hand to each other, and keys digests and session ids.

The key lives in a file beside engines and routers, never in the control plane. Each line is ``<key id> <hex secret>``;
the first line signs, every line verifies, so a key is rotated by prepending the new one. Subkeys for signing, digests
and session ids are derived with keyed blake2b and a purpose, so that no use can stand in for another.
"""

import base64
import hashlib
import hmac
import re
import stat
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

MIN_SECRET_BYTES = 32
KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,16}")
"""Short, so that a secret in its place is no key id; without a dot, which separates the parts of a token."""
MAX_TOKEN_CHARS = 4 * 1024 * 1024
"""Bounds what a peer can make us decode: 4 MiB holds the digests of about 6 million tokens."""


class InvalidTokenError(ValueError):
    """The token is malformed, of an unknown key, or its signature does not match. The caller recomputes."""


class FleetKey:
    """Keys read from a file. Raises ``ValueError`` with one sentence when the file cannot be trusted."""

    def __init__(self, secrets: dict[str, bytes]) -> None:
        if not secrets:
            raise ValueError("the fleet key file holds no key")
        self.active_id = next(iter(secrets))
        self._secrets = secrets
        self._signing = {key_id: _derive(secret, b"bh-sign") for key_id, secret in secrets.items()}

    @classmethod
    def load(cls, path: Path) -> "FleetKey":
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise ValueError(f"{path} is readable by others (mode {mode:03o}); run chmod 600 on it")
        secrets: dict[str, bytes] = {}
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if line.strip():
                key_id, secret = _parse_line(line.strip(), where=f"{path} line {number}")
                secrets[key_id] = secret
        return cls(secrets)

    def digest_key(self) -> bytes:
        """32 bytes that key KV block digests; the same on every engine of the fleet."""
        return _derive(self._secrets[self.active_id], b"bh-digest")

    def session_key(self) -> bytes:
        """32 bytes that key session ids, conversation chains and cache salts."""
        return _derive(self._secrets[self.active_id], b"bh-session")

    def sign(self, purpose: str, value: msgspec.Struct) -> str:
        """``<key id>.<payload>.<mac>`` in base64url; ``purpose`` is bound into the signature."""
        payload = base64.urlsafe_b64encode(msgspec.msgpack.encode(value)).decode()
        return f"{self.active_id}.{payload}.{self._mac(self.active_id, purpose, payload)}"

    def verify(self, purpose: str, token: object, kind: type[T]) -> T:
        """The signed value, or ``InvalidTokenError``. Nothing is decoded before the signature holds."""
        if not isinstance(token, str) or len(token) > MAX_TOKEN_CHARS or not token.isascii():
            raise InvalidTokenError("not a token")
        key_id, _, rest = token.partition(".")
        payload, _, mac = rest.partition(".")
        if key_id not in self._signing:
            raise InvalidTokenError("signed with an unknown key")
        if not hmac.compare_digest(mac.encode(), self._mac(key_id, purpose, payload).encode()):
            raise InvalidTokenError("signature does not match")
        try:
            return msgspec.msgpack.decode(base64.urlsafe_b64decode(payload), type=kind)
        except (ValueError, msgspec.MsgspecError) as error:
            raise InvalidTokenError(f"signed by a peer of another version: {error}") from error

    def _mac(self, key_id: str, purpose: str, payload: str) -> str:
        body = f"{purpose}.{key_id}.{payload}".encode()
        return hashlib.blake2b(body, key=self._signing[key_id], digest_size=32).hexdigest()


def _parse_line(line: str, where: str) -> tuple[str, bytes]:
    """Errors name the line and never quote it: a misplaced secret must not reach a log."""
    key_id, _, secret_hex = line.partition(" ")
    if not KEY_ID.fullmatch(key_id):
        raise ValueError(f"{where} does not start with a key id (up to 16 letters, digits, dashes, underscores)")
    try:
        secret = bytes.fromhex(secret_hex)
    except ValueError:
        raise ValueError(f"{where}: the secret is not hexadecimal") from None
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(f"{where}: the secret is shorter than {MIN_SECRET_BYTES} bytes")
    return key_id, secret


def _derive(secret: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(b"", key=hashlib.sha512(secret).digest(), person=purpose, digest_size=32).digest()
