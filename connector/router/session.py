"""Keyed ids of tenants' sessions, and the cache salt that keeps tenants apart inside the engines."""

import hashlib
import secrets

import msgspec

SESSION_ID_BYTES = 16
SALT_BYTES = 32


def new_session_id() -> str:
    """An id for a conversation whose client names none; the same shape as a derived one."""
    return secrets.token_hex(SESSION_ID_BYTES)


class SessionKeys:
    """Derives ids from the fleet's session key: the same on every router, of no use without the key."""

    def __init__(self, session_key: bytes) -> None:
        self._key = session_key
        self._salts: dict[str, str] = {}

    def session_id(self, tenant: str, client_key: str) -> str:
        """32 hexadecimal characters; two tenants with the same client key get different ids."""
        data = msgspec.msgpack.encode((tenant, client_key))
        return hashlib.blake2b(data, key=self._key, digest_size=SESSION_ID_BYTES, person=b"bh-session").hexdigest()

    def cache_salt(self, tenant: str) -> str:
        """64 hexadecimal characters. Tenants come from the fleet's API keys, so the memo is bounded by them."""
        salt = self._salts.get(tenant)
        if salt is None:
            data = tenant.encode()
            salt = hashlib.blake2b(data, key=self._key, digest_size=SALT_BYTES, person=b"bh-salt").hexdigest()
            self._salts[tenant] = salt
        return salt
