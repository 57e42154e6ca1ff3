"""The session keys of every line of the fleet key file, so that a rotation loses no living session.

Session ids, chains and cache salts of one turn all come from one key: a turn that reuses a lease takes the key that the
lease's turn had, since its KV was made under that salt; any other turn takes the newest.
"""

from dataclasses import dataclass

from connector.router.chain import ChainHasher
from connector.router.session import SessionKeys
from connector.signing import FleetKey, FleetKeySource


@dataclass(frozen=True, slots=True)
class KeyUse:
    """What is derived from one key of the file."""

    sessions: SessionKeys
    hasher: ChainHasher


class SessionKeyring:
    """``uses`` costs one comparison while the file is as it was."""

    def __init__(self, source: FleetKeySource) -> None:
        self._source = source
        self._key: FleetKey | None = None
        self._by_session_key: dict[bytes, KeyUse] = {}

    def uses(self) -> tuple[KeyUse, ...]:
        """Newest first, never empty."""
        key = self._source.current
        if key is not self._key:
            known, wanted = self._by_session_key, dict.fromkeys(key.session_key(key_id) for key_id in key.key_ids)
            self._by_session_key = {one: known.get(one) or _use_of(one) for one in wanted}
            self._key = key
        return tuple(self._by_session_key.values())

    def session_keys(self) -> tuple[bytes, ...]:
        """Newest first, never empty."""
        self.uses()
        return tuple(self._by_session_key)

    @property
    def newest_key(self) -> bytes:
        return self.session_keys()[0]


def _use_of(session_key: bytes) -> KeyUse:
    return KeyUse(SessionKeys(session_key), ChainHasher(session_key))
