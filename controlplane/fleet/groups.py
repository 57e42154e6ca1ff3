"""Channel-layer groups of the agents' and routers' sockets."""

from uuid import UUID

from controlplane.broadcast import broadcast_on_commit

AGENTS = "agents"
ROUTERS = "routers"


def agent_group(engine_id: UUID) -> str:
    """The group of one engine's agent; named by id, for an engine's name may be longer than a group's."""
    return f"agent.{engine_id.hex}"


def announce_fleet_changed() -> None:
    """Makes every router fetch a new FleetSnapshot after the commit, and every agent the list of its engine's peers."""
    broadcast_on_commit(ROUTERS, {"type": "fleet.changed"})
    broadcast_on_commit(AGENTS, {"type": "fleet.changed"})
