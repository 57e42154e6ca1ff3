"""Lease feed: agent to router."""

from connector.protocol.engine_facts import EngineLoad
from connector.protocol.events import LeaseEnded
from connector.protocol.link import CommandDone, LeaseOffer, LeaseRenewed, ReleaseLease
from connector.protocol.terms import EngineState, Message


class FeedSnapshot(Message, frozen=True):
    """First frame on every connection; deltas then count up from ``sequence`` without gaps."""

    protocol: int
    boot: str
    sequence: int
    engine_name: str
    state: EngineState
    incarnation: str
    load: EngineLoad | None
    leases: tuple[LeaseOffer, ...]


class EngineChanged(Message, frozen=True):
    """A new incarnation or state: leases of another incarnation are gone."""

    state: EngineState
    incarnation: str


class LoadChanged(Message, frozen=True):
    load: EngineLoad


class FeedDelta(Message, frozen=True):
    sequence: int
    change: LeaseOffer | LeaseRenewed | LeaseEnded | EngineChanged | LoadChanged


FeedToRouter = FeedSnapshot | FeedDelta | CommandDone
RouterToFeed = ReleaseLease
