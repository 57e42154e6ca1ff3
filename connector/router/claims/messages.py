"""Claims as they travel: ids, numbers and keyed hashes, each bounded; never a prompt, a reply or an offer.

A batch is signed as a whole with the fleet key, so that who can only write to Redis can claim nothing.
"""

from typing import Annotated

from msgspec import Meta, Struct

from connector.router.chain import MAX_CHAIN, PACKED_BYTES
from connector.router.known import NewTurn
from connector.router.replies.digest import DIGEST_BYTES
from connector.router.rewriting import MAX_PARTS, PART_BYTES

PURPOSE = "claim"

MAX_CLAIMS = 256
"""In one batch."""

MAX_TOKEN_CHARS = 128 * 1024
"""Of a signed batch: what is longer isn't even looked at."""

Id = Annotated[str, Meta(min_length=1, max_length=128)]
OptionalId = Annotated[str, Meta(max_length=128)]
Count = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]

MAX_INDEX = 0x7FFFFFFF
"""Of a turn: routers count on from it, in 32 bits."""


class TurnStarted(Struct, frozen=True, array_like=True, tag="s"):
    """``chain`` and ``parts`` as in ``NewTurn``. With ``parent_turn_id`` the turn goes on from that one: nobody else
    does so in the same session."""

    turn_id: Id
    session_id: Id
    tenant: Id
    index: Annotated[int, Meta(ge=0, le=MAX_INDEX)]
    chain: Annotated[bytes, Meta(max_length=MAX_CHAIN * PACKED_BYTES)]
    parts: Annotated[bytes, Meta(max_length=MAX_PARTS * PART_BYTES)]
    parent_turn_id: OptionalId

    def __post_init__(self) -> None:
        if len(self.chain) % PACKED_BYTES or len(self.parts) % PART_BYTES:
            raise ValueError("a chain or its parts end within a hash")

    @classmethod
    def of(cls, turn: NewTurn) -> "TurnStarted":
        return cls(
            turn.turn_id,
            turn.session_id,
            turn.tenant,
            min(turn.index, MAX_INDEX),
            turn.chain,
            turn.parts,
            turn.parent_turn_id,
        )

    @property
    def turn(self) -> NewTurn:
        return NewTurn(
            *(self.turn_id, self.session_id, self.tenant, self.index, self.chain),
            is_running=True,
            parts=self.parts,
            parent_turn_id=self.parent_turn_id,
        )


class TurnDecoding(Struct, frozen=True, array_like=True, tag="d"):
    """The engine will grant the turn a lease, and its agent will give notice of it."""

    turn_id: Id
    engine: Id


class TurnEnded(Struct, frozen=True, array_like=True, tag="e"):
    """``reply``: its digest, where it tells twins apart, or nothing. ``num_prompt_tokens``: 0 if unknown."""

    turn_id: Id
    is_served: bool
    reply: Annotated[bytes, Meta(max_length=DIGEST_BYTES)]
    num_prompt_tokens: Count


Claim = TurnStarted | TurnDecoding | TurnEnded


class Batch(Struct, frozen=True, array_like=True):
    """``boot`` is one run of a router; its batches are numbered without gaps. Without claims it is a sign of life.

    ``is_reset``: what was said before may have been lost; every turn that runs is said again. ``is_last``: a goodbye.
    """

    boot: Id
    sequence: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    is_reset: bool
    is_last: bool
    claims: Annotated[tuple[Claim, ...], Meta(max_length=MAX_CLAIMS)]


def size_of(claim: Claim) -> int:
    """Bytes on the wire, to within a few."""
    ids = 160
    return ids + len(claim.chain) + len(claim.parts) if isinstance(claim, TurnStarted) else ids
