"""The one wire contract between engine, agent, router and control plane.

Every message is a frozen, tagged msgspec struct. Sockets carry them as follows:

====================== ================================ ==================================
socket                 encoding                         unions
====================== ================================ ==================================
engine link (unix)     u32 big-endian length + msgpack  ``EngineToAgent`` / ``AgentToEngine``
agent ``/ws/agent/``   JSON text frames                 ``AgentToControl`` / ``ControlToAgent``
router ``/ws/router/`` JSON text frames                 ``RouterToControl`` / ``ControlToRouter``
lease feed ``/feed``   msgpack binary frames            ``FeedToRouter`` / ``RouterToFeed``
====================== ================================ ==================================

Version history: 1, first release; 2, ``SetPeers`` and ``ResetCache``. One version of skew is supported: a receiver
ignores unknown fields and refuses a hello whose ``protocol`` differs from its own by more than one; a sender says what
version 2 brought only to a peer whose hello says 2 or more. Clocks of two processes are never compared: a sender
gives ages and remaining times, a receiver dates an event by receipt minus age.
"""

from connector.protocol.control import (
    AgentHello,
    AgentStatus,
    AgentToControl,
    Command,
    ControlToAgent,
    LeaseSnapshot,
    PolicyAck,
    Refused,
    Welcome,
)
from connector.protocol.engine_facts import EngineInfo, EngineLoad
from connector.protocol.envelope import MAX_REPLACED_LEASES, LegEnvelope, LegReply
from connector.protocol.events import (
    Event,
    EventBatch,
    EventsCommitted,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LegDecided,
    NumberedEvent,
    TransferRecorded,
    TurnRecorded,
)
from connector.protocol.feed import EngineChanged, FeedDelta, FeedSnapshot, FeedToRouter, LoadChanged, RouterToFeed
from connector.protocol.link import (
    MAX_FORMER_INCARNATIONS,
    MAX_PEERS,
    SINCE,
    AgentToEngine,
    CommandDone,
    EngineEvent,
    EngineHello,
    EngineToAgent,
    ExtendLease,
    LeaseOffer,
    LeaseRenewed,
    Peer,
    Ping,
    PolicyApplied,
    Pong,
    ReleaseLease,
    ResetCache,
    SetPeers,
    SetPolicy,
)
from connector.protocol.policy import MIN_TTL_SECONDS, PolicyPatch, PolicyValues
from connector.protocol.routers import (
    ApiKeyHash,
    ControlToRouter,
    FleetEngine,
    FleetSnapshot,
    RouterHello,
    RouterStatus,
    RouterToControl,
)
from connector.protocol.terms import (
    PROTOCOL_VERSION,
    Decision,
    Direction,
    EngineState,
    LeaseKind,
    LeaseState,
    Message,
    Name,
    NonNegative,
    Role,
    Seconds,
    Share,
    TransferOutcome,
    Value,
)

__all__ = [
    "MAX_FORMER_INCARNATIONS",
    "MAX_PEERS",
    "MAX_REPLACED_LEASES",
    "MIN_TTL_SECONDS",
    "PROTOCOL_VERSION",
    "SINCE",
    "AgentHello",
    "AgentStatus",
    "AgentToControl",
    "AgentToEngine",
    "ApiKeyHash",
    "Command",
    "CommandDone",
    "ControlToAgent",
    "ControlToRouter",
    "Decision",
    "Direction",
    "EngineChanged",
    "EngineEvent",
    "EngineHello",
    "EngineInfo",
    "EngineLoad",
    "EngineState",
    "EngineToAgent",
    "Event",
    "EventBatch",
    "EventsCommitted",
    "ExtendLease",
    "FeedDelta",
    "FeedSnapshot",
    "FeedToRouter",
    "FleetEngine",
    "FleetSnapshot",
    "LeaseEnded",
    "LeaseExtended",
    "LeaseGranted",
    "LeaseKind",
    "LeaseOffer",
    "LeaseRenewed",
    "LeaseSnapshot",
    "LeaseState",
    "LegDecided",
    "LegEnvelope",
    "LegReply",
    "LoadChanged",
    "Message",
    "Name",
    "NonNegative",
    "NumberedEvent",
    "Peer",
    "Ping",
    "PolicyAck",
    "PolicyApplied",
    "PolicyPatch",
    "PolicyValues",
    "Pong",
    "Refused",
    "ReleaseLease",
    "ResetCache",
    "Role",
    "RouterHello",
    "RouterStatus",
    "RouterToControl",
    "RouterToFeed",
    "Seconds",
    "SetPeers",
    "SetPolicy",
    "Share",
    "TransferOutcome",
    "TransferRecorded",
    "TurnRecorded",
    "Value",
    "Welcome",
]
