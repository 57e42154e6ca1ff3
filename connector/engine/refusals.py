"""Why a validly signed offer can't be used here: pure, with one distinct reason per case.

The order is that of the decisions in the operator's contract: rejected, unsupported, source lost.
"""

from collections.abc import Iterator

import msgspec

from connector.engine.kv_layout import KvLayout
from connector.engine.offers import OFFER_FORMAT, KvOffer
from connector.engine.peers import UNKNOWN_ENGINE, PeerBook
from connector.protocol import Decision, Role
from connector.signing import FleetKey


class Refusal(msgspec.Struct, frozen=True):
    """``reason`` is this engine's own word for the log and the counters; the turn is told the ``decision``."""

    decision: Decision
    reason: str


class Reader(msgspec.Struct, kw_only=True):
    """What this engine is. ``layout`` becomes known before the first request.

    ``checks_build`` is vLLM's ``enforce_handshake_compat``. ``ignores_memory_order``: MLA caches have one order.
    ``permutes`` is vLLM's ``enable_permute_local_kv``.
    """

    role: Role
    fingerprint: bytes
    block_size: int
    tp_size: int = 1
    dcp_size: int = 1
    layout: KvLayout = KvLayout()
    checks_build: bool = True
    ignores_memory_order: bool = False
    permutes: bool = False


def refusal(offer: KvOffer, reader: Reader, *, tenant: str, key: FleetKey, peers: PeerBook) -> Refusal | None:
    """The first reason against the offer, or ``None``."""
    against_peer = peers.reason_against(offer.engine, offer.incarnation)
    if reason := next(_rejections(offer, reader, tenant, key), ""):
        return Refusal(Decision.REJECTED, reason)
    if against_peer == UNKNOWN_ENGINE:
        return Refusal(Decision.REJECTED, against_peer)
    if reason := next(_mismatches(offer, reader), ""):
        return Refusal(Decision.UNSUPPORTED, reason)
    return Refusal(Decision.SOURCE_LOST, against_peer) if against_peer else None


def _rejections(offer: KvOffer, reader: Reader, tenant: str, key: FleetKey) -> Iterator[str]:
    if offer.role is reader.role:
        yield "same_role"
    if offer.tenant != tenant:
        yield "other_tenant"
    if not offer.fence_words:
        yield "no_fence"
    if offer.format == OFFER_FORMAT and offer.digest_key_id not in key.key_ids:
        yield "unknown_digest_key"


def _mismatches(offer: KvOffer, reader: Reader) -> Iterator[str]:
    theirs, ours = offer.layout, reader.layout
    is_same_shape = (offer.tp_size, offer.dcp_size) == (reader.tp_size, reader.dcp_size)
    if offer.format != OFFER_FORMAT:
        yield "other_format"
    if offer.model_fingerprint != reader.fingerprint:
        yield "other_model"
    if offer.block_size != reader.block_size:
        # vLLM transfers between some block sizes, but digests are per block, so nothing could be compared.
        yield "other_block_size"
    if not (_divide(offer.tp_size, reader.tp_size) and _divide(offer.dcp_size, reader.dcp_size)):
        yield "other_parallelism"
    if reader.checks_build and _differ(theirs.handshake_hash, ours.handshake_hash):
        yield "other_build"
    if is_same_shape and _differ(theirs.block_bytes, ours.block_bytes):
        yield "other_block_bytes"
    if _differ(theirs.memory_order, ours.memory_order) and not _reads_order(reader, theirs.memory_order):
        yield "other_memory_order"


def _reads_order(reader: Reader, theirs: str) -> bool:
    return reader.ignores_memory_order or (
        reader.permutes and (theirs, reader.layout.memory_order) == ("LBHNC", "LBNHC")
    )


def _divide(one: int, other: int) -> bool:
    return one > 0 and other > 0 and (one % other == 0 or other % one == 0)


def _differ(theirs: str | int, ours: str | int) -> bool:
    return bool(theirs) and bool(ours) and theirs != ours
