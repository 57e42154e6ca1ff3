"""An offer: what a source engine promises about blocks it holds, signed, and the only remote facts a reader believes.

vLLM's own ``kv_transfer_params`` are rebuilt from the verified offer; whatever else arrives in a request is dropped.
"""

from typing import Any

import msgspec

from connector.engine.kv_layout import KvLayout
from connector.protocol import Role

OFFER_FORMAT = 2
"""Counts up with every change of what an offer means; a reader of another format recomputes.

1: first release. 2: names the digest key and the layout.
"""

PURPOSE = "offer"
"""Bound into the signature, so that an envelope can't pose as an offer."""


class FenceWord(msgspec.Struct, frozen=True, array_like=True):
    """Address of a lease's generation word in the source's registered memory, on one transfer rank."""

    rank: int
    address: int


class KvOffer(msgspec.Struct, frozen=True, kw_only=True):
    """``block_ids: [groups][blocks]``; ``digests``: 16 bytes a whole block; ``expires_at_source``: the source's own
    ``perf_counter`` seconds, ``None`` for a handoff, whose life is renewed by heartbeats.

    ``digest_key_id`` names the line of the fleet key file that keys the digests; the offer may be signed with another.
    """

    lease_id: str
    engine: str
    incarnation: str
    role: Role
    tenant: str
    model_fingerprint: bytes
    block_size: int
    num_tokens: int
    block_ids: tuple[tuple[int, ...], ...]
    digests: bytes
    tail_digest: bytes
    host: str
    port: int
    request_id: str
    tp_size: int
    dcp_size: int
    pp_size: int
    expires_at_source: float | None
    fence_words: tuple[FenceWord, ...]
    fence_generation: int
    digest_key_id: str = ""
    layout: KvLayout = KvLayout()
    format: int = 1

    def endpoint_params(self) -> dict[str, Any]:
        """Who holds it, naming no blocks: vLLM renews the lease by heartbeats and reads nothing."""
        return {**self.remote_params(0, 0), "remote_block_ids": []}

    def remote_params(self, num_blocks: int, num_tokens: int) -> dict[str, Any]:
        """vLLM 0.32's remote fields for the first ``num_blocks`` blocks of every group, holding ``num_tokens``."""
        return {
            "remote_engine_id": self.incarnation,
            "remote_request_id": self.request_id,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": self.tp_size,
            "dcp_size": self.dcp_size,
            "pp_size": self.pp_size,
            "remote_block_ids": [list(group[:num_blocks]) for group in self.block_ids],
            "remote_num_tokens": num_tokens,
            "remote_blocks_expiry_time": self.expires_at_source,
        }
