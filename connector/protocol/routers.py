"""Router and control plane."""

from connector.protocol.control import PolicyAck, Refused, Welcome
from connector.protocol.events import EventBatch, EventsCommitted
from connector.protocol.policy import PolicyPatch, PolicyValues
from connector.protocol.terms import Message, Name, Role, Value


class RouterHello(Message, frozen=True):
    protocol: int
    boot: str
    router_name: Name
    router_version: str = ""


class RouterStatus(Message, frozen=True):
    num_active_turns: int
    num_leases: int
    num_pending_events: int
    num_dropped_events: int


class FleetEngine(Value, frozen=True):
    """``state``: ``ready``, ``stalled``, ``down``, ``silent`` (agent unheard) or ``pending`` (awaits approval)."""

    name: Name
    role: Role
    model: str
    state: str
    draining: bool
    engine_url: str
    feed_url: str
    incarnation: str


class ApiKeyHash(Value, frozen=True):
    """SHA-256 (hex) of a router API key and the tenant that it speaks for. An ``operator``'s key is also told how its
    turns were placed."""

    key_id: str
    sha256: str
    tenant: str
    operator: bool = False


class FleetSnapshot(Message, frozen=True):
    """All that a router needs, whole, at connect and on every change. The last one is kept on the router's disk.

    ``values`` is the fleet scope resolved; the patches are narrower scopes that a router applies per request.
    """

    revision: int
    values: PolicyValues
    model_patches: dict[str, PolicyPatch]
    tenant_patches: dict[str, PolicyPatch]
    session_patches: dict[str, PolicyPatch]
    engines: tuple[FleetEngine, ...]
    api_keys: tuple[ApiKeyHash, ...]


RouterToControl = RouterHello | RouterStatus | EventBatch | PolicyAck
ControlToRouter = Welcome | Refused | FleetSnapshot | EventsCommitted
