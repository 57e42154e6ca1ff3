"""Agent and control plane."""

from connector.protocol.engine_facts import EngineInfo, EngineLoad
from connector.protocol.events import EventBatch, EventsCommitted, LeaseGranted
from connector.protocol.link import CommandDone, ExtendLease, ReleaseLease, ResetCache, SetPeers, SetPolicy
from connector.protocol.policy import PolicyValues
from connector.protocol.terms import EngineState, Message, Name


class AgentHello(Message, frozen=True):
    """``engine`` is absent until the engine answered once. URLs are how routers reach engine and feed."""

    protocol: int
    boot: str
    engine_name: Name
    engine_url: str
    feed_url: str
    engine: EngineInfo | None = None
    agent_version: str = ""


class AgentStatus(Message, frozen=True):
    """Heartbeat, every 2 s and on change. ``engine`` is present when the incarnation changed since the last one."""

    state: EngineState
    incarnation: str = ""
    load: EngineLoad | None = None
    engine: EngineInfo | None = None
    num_dropped_events: int = 0
    num_pending_events: int = 0


class LeaseSnapshot(Message, frozen=True):
    """All leases held now, sent after each hello: placements of this engine that are not in it have ended."""

    incarnation: str
    leases: tuple[LeaseGranted, ...]


class PolicyAck(Message, frozen=True):
    """``enforcer`` is the engine's or router's name."""

    enforcer: str
    revision: int
    values: PolicyValues
    unsupported_fields: tuple[str, ...] = ()


class Welcome(Message, frozen=True):
    """Answer to a hello: the control plane's own interval expectations and the last committed sequence of this boot."""

    protocol: int
    committed_sequence: int
    approved: bool
    heartbeat_seconds: float = 2.0


class Refused(Message, frozen=True):
    """The peer closes after this; ``reason`` is for the operator's log."""

    reason: str


class Command(Message, frozen=True):
    """A command for the engine; answered by ``CommandDone`` with the same id, void after ``deadline_seconds``."""

    deadline_seconds: float
    body: ReleaseLease | ExtendLease | ResetCache


AgentToControl = AgentHello | AgentStatus | LeaseSnapshot | EventBatch | PolicyAck | CommandDone
ControlToAgent = Welcome | Refused | SetPolicy | SetPeers | EventsCommitted | Command
