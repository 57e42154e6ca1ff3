"""API keys of clients: bearer token in, tenant out, and whether an operator holds it."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from connector.protocol import ApiKeyHash
from connector.router.errors import ApiError

MAX_KEY_CHARS = 512


class Holder(NamedTuple):
    """Whom a key speaks for. An operator's also tells how turns were placed."""

    tenant: str
    is_operator: bool


class ApiKeys:
    """The fleet's API keys by SHA-256. Keys are never held, and a lookup by hash leaks no prefix by its timing."""

    def __init__(self) -> None:
        self._by_hash: dict[str, Holder] = {}

    def replace(self, keys: Iterable[ApiKeyHash]) -> None:
        self._by_hash = {key.sha256.lower(): Holder(key.tenant, key.operator) for key in keys}

    def __len__(self) -> int:
        return len(self._by_hash)

    def holder_of(self, headers: Mapping[str, str]) -> Holder:
        """Whom the request speaks for. Raises ``ApiError`` 401."""
        token = _token_of(headers)
        if not token:
            raise _unauthorized("You didn't provide an API key. Send it as 'Authorization: Bearer <key>'.")
        if len(token) <= MAX_KEY_CHARS:
            digest = hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
            holder = self._by_hash.get(digest)
            if holder is not None:
                return holder
        raise _unauthorized("Incorrect API key provided.")


def _token_of(headers: Mapping[str, str]) -> str:
    """Empty when there is none. Anthropic's clients send ``X-Api-Key``; it counts where no ``Authorization`` is."""
    given = headers.get("Authorization")
    if given is None:
        return headers.get("X-Api-Key", "").strip()
    scheme, _, token = given.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key")
