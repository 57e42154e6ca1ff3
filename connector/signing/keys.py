"""One snapshot of the fleet key: what signs and verifies, and the subkeys of digests and session ids.

Subkeys are derived with keyed blake2b and a purpose, so that no use can stand in for another.
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
MAX_KEYS = 16
MAX_FILE_BYTES = 64 * 1024
KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,16}")
"""Short, so that a secret in its place is no key id; without a dot, which separates the parts of a token."""
MAX_TOKEN_CHARS = 4 * 1024 * 1024
"""Bounds what a peer can make us decode: 4 MiB holds the digests of about 6 million tokens."""


class InvalidTokenError(ValueError):
    """The token can't be believed; the caller recomputes. ``reason`` says why in one word, for counters."""

    reason = "malformed_token"


class UnknownKeyError(InvalidTokenError):
    """Signed with a key that is not in this process's file (any more, or yet)."""

    reason = "unknown_key"


class BadSignatureError(InvalidTokenError):
    reason = "bad_signature"


class ForeignVersionError(InvalidTokenError):
    """The signature holds, but the value is not of this version's shape: it comes from a peer of another release."""

    reason = "other_format"


class FleetKey:
    """The keys of one reading of the file, newest first; immutable. ``key_ids`` are no secrets."""

    def __init__(self, secrets: dict[str, bytes]) -> None:
        if not secrets:
            raise ValueError("the fleet key file holds no key")
        self.key_ids = tuple(secrets)
        self.active_id = self.key_ids[0]
        self._secrets = secrets
        self._signing = {key_id: _derive(secret, b"bh-sign") for key_id, secret in secrets.items()}
        self._digest = {key_id: _derive(secret, b"bh-digest") for key_id, secret in secrets.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FleetKey) and list(self._secrets.items()) == list(other._secrets.items())

    __hash__ = None  # type: ignore[assignment]  # nothing looks a key up by its secrets

    @property
    def current(self) -> "FleetKey":
        """Itself: a fixed key serves wherever a live one (``FleetKeyFile``) is asked for its newest snapshot."""
        return self

    def refresh(self) -> bool:
        """Never changes; see ``current``."""
        return False

    @classmethod
    def load(cls, path: Path) -> "FleetKey":
        """Raises ``OSError``, or ``ValueError`` with one sentence when the file cannot be trusted."""
        facts = path.stat()
        mode = stat.S_IMODE(facts.st_mode)
        if mode & 0o077:
            raise ValueError(f"{path} is readable by others (mode {mode:03o}); run chmod 600 on it")
        if facts.st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path} is larger than {MAX_FILE_BYTES} bytes, so it is no fleet key file")
        return cls(parse_keys(path.read_bytes(), where=str(path)))

    def digest_key(self, key_id: str = "") -> bytes:
        """32 bytes that key KV block digests; the same on every engine of the fleet. Raises ``KeyError``."""
        return self._digest[key_id or self.active_id]

    def session_key(self, key_id: str = "") -> bytes:
        """32 bytes that key session ids, conversation chains and cache salts. Raises ``KeyError``."""
        return _derive(self._secrets[key_id or self.active_id], b"bh-session")

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
            raise UnknownKeyError("signed with an unknown key")
        if not hmac.compare_digest(mac.encode(), self._mac(key_id, purpose, payload).encode()):
            raise BadSignatureError("signature does not match")
        try:
            return msgspec.msgpack.decode(base64.urlsafe_b64decode(payload), type=kind)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ForeignVersionError(f"signed by a peer of another version: {error}") from error

    def _mac(self, key_id: str, purpose: str, payload: str) -> str:
        body = f"{purpose}.{key_id}.{payload}".encode()
        return hashlib.blake2b(body, key=self._signing[key_id], digest_size=32).hexdigest()


def parse_keys(content: bytes, where: str) -> dict[str, bytes]:
    """Secrets by key id, in the file's order. ``ValueError`` names the place and never quotes what stands there."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{where} is not text") from None
    secrets: dict[str, bytes] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        key_id, secret = _parse_line(line.strip(), where=f"{where} line {number}")
        if key_id in secrets:
            raise ValueError(f"{where} line {number}: key id {key_id} stands there twice")
        secrets[key_id] = secret
    if len(secrets) > MAX_KEYS:
        raise ValueError(f"{where} holds more than {MAX_KEYS} keys; remove those that no lease needs any more")
    return secrets


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
