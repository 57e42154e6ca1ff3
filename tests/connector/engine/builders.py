"""Small valid values for engine tests; each test changes only what it is about."""

import itertools
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from connector.engine.digests import DigestChain, pack
from connector.engine.grants import LeaseFactory
from connector.engine.lease import Lease
from connector.engine.offers import OFFER_FORMAT, FenceWord, KvOffer
from connector.engine.slot_index import NUM_SLOTS
from connector.protocol import LeaseKind, LeaseState, LegEnvelope, Role
from connector.signing import FleetKey

BLOCK_SIZE = 4
SECRET = bytes(range(32))
FLEET_KEY = FleetKey({"k1": SECRET})
FINGERPRINT = b"f" * 16
SEED = b"seed"


def chain_of(
    tokens: Sequence[int], block_size: int = BLOCK_SIZE, *, key: bytes = SECRET, seed: bytes = SEED
) -> DigestChain:
    """A chain extended over all whole blocks of the tokens."""
    chain = DigestChain(key, seed, block_size)
    chain.extend(tokens, len(tokens))
    return chain


def naive_common_blocks(mine: Sequence[int], theirs: Sequence[int], block_size: int) -> int:
    """Whole blocks of equal tokens from the start, counted one token at a time."""
    equal = 0
    while equal < min(len(mine), len(theirs)) and mine[equal] == theirs[equal]:
        equal += 1
    return equal // block_size


def an_offer(
    tokens: Sequence[int] = range(8),
    block_size: int = BLOCK_SIZE,
    *,
    block_ids: Sequence[int] | None = None,
    **changes: Any,
) -> KvOffer:
    """D's offer of these tokens in blocks 100, 101 …"""
    chain = chain_of(tokens, block_size)
    ids = range(100, 100 + -(-len(tokens) // block_size)) if block_ids is None else block_ids
    offer = KvOffer(
        lease_id="lease-1",
        engine="d-0",
        incarnation="d-0-boot",
        role=Role.DECODE,
        tenant="default",
        model_fingerprint=FINGERPRINT,
        block_size=block_size,
        num_tokens=len(tokens),
        block_ids=(tuple(ids),),
        digests=pack(chain.digests),
        tail_digest=chain.tail(tokens, len(tokens)),
        host="127.0.0.1",
        port=5600,
        request_id="req-d",
        tp_size=1,
        dcp_size=1,
        pp_size=1,
        expires_at_source=time.perf_counter() + 480,
        fence_words=(FenceWord(0, 0x1000),),
        fence_generation=7,
        digest_key_id="k1",
        format=OFFER_FORMAT,
    )
    return msgspec.structs.replace(offer, **changes)


def an_envelope(**changes: Any) -> LegEnvelope:
    envelope = LegEnvelope(
        leg=Role.PREFILL,
        tenant="default",
        session_id="session-1",
        turn_id="turn-1",
        expires_unix=time.time() + 60,
    )
    return msgspec.structs.replace(envelope, **changes)


def a_factory(**changes: Any) -> LeaseFactory:
    """What engine ``d-0`` says of its leases; a KV block has 1,024 bytes."""
    parallel = SimpleNamespace(decode_context_parallel_size=1, pipeline_parallel_size=1)
    scheduler = SimpleNamespace(
        vllm_config=SimpleNamespace(parallel_config=parallel),
        engine_id="d-0-boot",
        block_size=BLOCK_SIZE,
        side_channel_host="127.0.0.1",
        side_channel_port=5600,
        transfer_tp_size=1,
    )
    given = {"role": Role.DECODE, "sign": lambda offer: FLEET_KEY.sign("offer", offer), **changes}
    factory = LeaseFactory(
        scheduler, "d-0", fingerprint=FINGERPRINT, bytes_per_block=given.pop("bytes_per_block", 1024), **given
    )
    factory.fence_address_of_rank[0] = 0x1000
    return factory


_slots = itertools.cycle(range(NUM_SLOTS))


def a_lease(
    name: str,
    block_ids: Sequence[int] = (1, 2),
    *,
    tokens: Sequence[int] | None = None,
    age_seconds: float = 0.0,
    pinned: bool = False,
    num_reads: int = 0,
    ending: tuple[LeaseState, str] | None = None,
    **changes: Any,
) -> Lease:
    """A session lease ``lease-<name>`` of request ``req-<name>``; ``age_seconds`` is how long ago it was granted."""
    held = tuple(range(len(block_ids) * BLOCK_SIZE)) if tokens is None else tuple(tokens)
    chain = chain_of(held)
    granted_at = changes.pop("granted_at", time.perf_counter() - age_seconds)
    given: dict[str, Any] = {
        "lease_id": f"lease-{name}",
        "request_id": f"req-{name}",
        "kind": LeaseKind.SESSION,
        "tenant": "default",
        "session_id": f"session-{name}",
        "turn_id": f"turn-{name}",
        "digest_key_id": "k1",
        "chain": ("c1",),
        "block_ids": (tuple(block_ids),),
        "digests": pack(chain.digests),
        "tail_digest": chain.tail(held, len(held)),
        "num_tokens": len(held),
        "fence": (next(_slots), 7),
        "granted_at": granted_at,
        "deadline": granted_at + 480,
    }
    lease = Lease(**{**given, **changes})
    lease.pinned, lease.num_reads, lease.ending = pinned, num_reads, ending
    return lease


def covers(tokens: Sequence[int]) -> Callable[[Lease], bool]:
    """Whether an older lease's tokens are a prefix of these."""
    chain = chain_of(tokens)
    return lambda old: chain.tail(tokens, old.num_tokens) == old.tail_digest
