"""Channel-layer groups of the agents' and routers' sockets, and what is said to them after a commit."""

from typing import Any
from uuid import UUID

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction

AGENTS = "agents"
ROUTERS = "routers"


def agent_group(engine_id: UUID) -> str:
    """The group of one engine's agent; named by id, for an engine's name may be longer than a group's."""
    return f"agent.{engine_id.hex}"


def tell(group: str, message: dict[str, Any]) -> None:
    """Sends now. The layer delivers at most once: what must arrive is also in the tables, for the next connect."""
    async_to_sync(get_channel_layer().group_send)(group, message)


def tell_on_commit(group: str, message: dict[str, Any]) -> None:
    """Sends when the transaction commits; a layer that is down is logged and costs the caller nothing."""
    transaction.on_commit(lambda: tell(group, message), robust=True)


def announce_fleet_changed() -> None:
    """Makes every router fetch a new FleetSnapshot after the commit."""
    tell_on_commit(ROUTERS, {"type": "fleet.changed"})
