"""Fleet key: signs what engines and routers hand to each other, and keys digests and session ids.

The key lives in a file beside engines and routers, never in the control plane. Each line is ``<key id> <hex secret>``;
the first line signs, every line verifies, so that ``python -m connector.signing`` can rotate it on a running fleet.
"""

from connector.signing.keys import (
    MAX_TOKEN_CHARS,
    FleetKey,
    ForeignVersionError,
    InvalidTokenError,
)
from connector.signing.live import FleetKeyFile, FleetKeySource

__all__ = [
    "MAX_TOKEN_CHARS",
    "FleetKey",
    "FleetKeyFile",
    "FleetKeySource",
    "ForeignVersionError",
    "InvalidTokenError",
]
