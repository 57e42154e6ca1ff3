"""Names of responses: which engine keeps an earlier response, and whose it is, told by its id alone.

vLLM keeps responses in the memory of one API server, for anybody who knows an id. The router names them itself: the id
holds turn and session, and a keyed tag over these, the tenant, and the engine's process. So any router of the fleet
finds the engine without having seen the turn, and an id of another tenant, or of a process that is gone, finds nothing.
"""

import hashlib
import hmac
from uuid import UUID

import msgspec

from connector.protocol import Role
from connector.router.errors import ApiError
from connector.router.fleet import Engine, Fleet
from connector.router.keyring import SessionKeyring

PREFIX = "resp_"
ID_HEX = 32
TAG_BYTES = 12


class EarlierResponses:
    """Names responses and finds them again. Holds no state."""

    def __init__(self, fleet: Fleet, keyring: SessionKeyring) -> None:
        self._fleet = fleet
        self._keyring = keyring

    def name(self, tenant: str, session_id: str, turn_id: str, engine: Engine) -> str:
        """The id that the engine shall give its response: ``resp_`` and 88 hexadecimal characters."""
        stem = UUID(turn_id).hex + session_id
        return f"{PREFIX}{stem}{_tag(self._keyring.newest_key, tenant, stem, engine)}"

    def find(self, tenant: str, response_id: str) -> tuple[Engine, str]:
        """The engine that keeps the response, and its session. Raises ``ApiError`` 400, the same for all that is not
        to be found: unknown, foreign, or lost with its engine."""
        stem, tag = response_id[len(PREFIX) : -2 * TAG_BYTES], response_id[-2 * TAG_BYTES :]
        if response_id.startswith(PREFIX) and len(stem) == 2 * ID_HEX and tag.isascii():
            for engine in self._fleet:
                if engine.role is Role.DECODE and engine.is_up and self._is_kept_by(engine, tenant, stem, tag):
                    return engine, stem[ID_HEX:]
        raise ApiError(
            400,
            "Previous response not found: no engine that is up keeps it for you. Send the whole history in 'input'.",
            param="previous_response_id",
            code="previous_response_not_found",
        )

    def _is_kept_by(self, engine: Engine, tenant: str, stem: str, tag: str) -> bool:
        """Under any key of the file: responses made before a rotation are still there."""
        keys = self._keyring.session_keys()
        return any(hmac.compare_digest(_tag(key, tenant, stem, engine), tag) for key in keys)


def _tag(key: bytes, tenant: str, stem: str, engine: Engine) -> str:
    data = msgspec.msgpack.encode((tenant, stem, engine.name, engine.incarnation))
    return hashlib.blake2b(data, key=key, digest_size=TAG_BYTES, person=b"bh-response").hexdigest()
