"""Engine link: engine and agent, on one machine."""

from typing import Annotated

import msgspec

from connector.protocol.engine_facts import EngineInfo, EngineLoad
from connector.protocol.events import LeaseEnded, LeaseExtended, LeaseGranted, LegDecided, TransferRecorded
from connector.protocol.policy import PolicyValues
from connector.protocol.terms import Message, Name, Seconds, Value

MAX_PEERS = 1024
MAX_FORMER_INCARNATIONS = 8
MAX_INCARNATION_CHARS = 200


class SetPolicy(Message, frozen=True):
    revision: int
    values: PolicyValues


class PolicyApplied(Message, frozen=True):
    """``values`` are read back from the attributes that the engine really uses."""

    revision: int
    values: PolicyValues
    unsupported_fields: tuple[str, ...] = ()


class Peer(Value, frozen=True):
    """An approved engine of the fleet. ``incarnation`` is empty until its agent has heard it.

    ``former``: incarnations of the same name that are known to be gone, newest first.
    """

    name: Name
    incarnation: Annotated[str, msgspec.Meta(max_length=MAX_INCARNATION_CHARS)] = ""
    former: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=MAX_INCARNATION_CHARS)], ...],
        msgspec.Meta(max_length=MAX_FORMER_INCARNATIONS),
    ] = ()


class SetPeers(Message, frozen=True):
    """Whose offers an engine may read, whole; since protocol 2, and sent only to those that speak it.

    ``None``: no list can be given (a fleet larger than ``MAX_PEERS``), so signatures alone decide.
    """

    peers: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=MAX_PEERS)] | None


class ReleaseLease(Message, frozen=True):
    """Idempotent. ``key`` is a lease id or the engine's request id."""

    command_id: str
    key: str
    reason: str = "command"


class ExtendLease(Message, frozen=True):
    """Sets the remaining time of a held lease to ``ttl_seconds`` from now; ``pinned`` stops its clock."""

    command_id: str
    lease_id: str
    ttl_seconds: Seconds
    pinned: bool = False


class ResetCache(Message, frozen=True):
    """Empties the engine's prefix cache, and releases every lease first, pinned ones included.

    The engine goes on trying for ``patience_seconds`` while requests hold blocks. Since protocol 2.
    """

    command_id: str
    patience_seconds: Seconds = 3.0


class CommandDone(Message, frozen=True):
    """``outcome``: ``released``, ``extended``, ``pinned``, ``reset``, ``not_found`` or ``failed``."""

    command_id: str
    outcome: str
    detail: str = ""


class Ping(Message, frozen=True):
    nonce: int


class EngineHello(Message, frozen=True):
    """First frame of the engine on every link connection, followed by a ``LeaseOffer`` for each lease it holds."""

    protocol: int
    engine: EngineInfo
    policy: PolicyApplied
    num_leases: int


class Pong(Message, frozen=True):
    nonce: int
    load: EngineLoad


class LeaseOffer(Message, frozen=True):
    """A grant with what a router needs to offer it. ``offer`` is the engine's signed token, opaque outside engines.

    ``chain`` are the router's own conversation hashes, echoed from the envelope of the turn that made the lease.
    """

    lease: LeaseGranted
    offer: str
    chain: tuple[str, ...] = ()


class LeaseRenewed(Message, frozen=True):
    """An extension with the re-signed offer that carries the new expiry."""

    lease: LeaseExtended
    offer: str


class EngineEvent(Message, frozen=True):
    """Any other event on the link; ``age_ms`` as of sending."""

    age_ms: float
    event: LeaseEnded | TransferRecorded | LegDecided


EngineToAgent = EngineHello | PolicyApplied | Pong | LeaseOffer | LeaseRenewed | EngineEvent | CommandDone
AgentToEngine = SetPolicy | SetPeers | ReleaseLease | ExtendLease | ResetCache | Ping

SINCE: dict[type[Message], int] = {SetPeers: 2, ResetCache: 2}
"""The protocol that brought a message, where it wasn't the first: older peers would take it for garbage."""
