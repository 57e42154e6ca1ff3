"""Applies what the feeds tell to the fleet and the lease book."""

import logging

from connector.protocol import (
    EngineChanged,
    EngineState,
    FeedDelta,
    FeedSnapshot,
    LeaseEnded,
    LeaseOffer,
    LeaseRenewed,
    LoadChanged,
)
from connector.router.fleet import Engine, Fleet
from connector.router.leases import LeaseBook

log = logging.getLogger(__name__)


class EngineWatch:
    """The listener of all feeds. A feed that goes away takes nothing with it: its leases run until their deadlines."""

    def __init__(self, fleet: Fleet, book: LeaseBook) -> None:
        self._fleet = fleet
        self._book = book

    async def take_snapshot(self, engine: str, snapshot: FeedSnapshot) -> None:
        known = self._fleet.get(engine)
        if known is None:
            return
        self._set_state(known, snapshot.state, snapshot.incarnation)
        known.take_load(snapshot.load)
        known.is_late_with_notices = False
        await self._book.replace_engine(engine, snapshot.incarnation, snapshot.leases)

    def take_delta(self, engine: str, delta: FeedDelta) -> None:
        known = self._fleet.get(engine)
        if known is None:
            return
        match delta.change:
            case LeaseOffer() as offer:
                known.is_late_with_notices = False
                self._book.grant(engine, known.incarnation, offer)
            case LeaseRenewed() as renewed:
                self._book.renew(engine, renewed)
            case LeaseEnded() as ended:
                self._book.end(engine, ended)
            case EngineChanged() as changed:
                self._set_state(known, changed.state, changed.incarnation)
            case LoadChanged() as changed_load:
                known.take_load(changed_load.load)

    def lose_feed(self, engine: str) -> None:
        known = self._fleet.get(engine)
        if known is not None:
            known.feed_state = None

    def follow_fleet(self, before: frozenset[str]) -> None:
        """The fleet changed: leases of engines that are gone, or known to have restarted, are gone too."""
        for name in before:
            engine = self._fleet.get(name)
            if engine is None:
                self._book.drop_engine(name)
            elif engine.incarnation:
                self._book.drop_engine(name, keep_incarnation=engine.incarnation)

    def _set_state(self, engine: Engine, state: EngineState, incarnation: str) -> None:
        returns = engine.feed_state not in (None, EngineState.READY) and state is EngineState.READY
        if returns or (engine.feed_incarnation and incarnation not in ("", engine.feed_incarnation)):
            engine.health.doubt()
        if engine.feed_state is not state:
            log.info("event=engine_state engine=%s state=%s incarnation=%s", engine.name, state.value, incarnation)
        engine.feed_state = state
        if incarnation:
            engine.feed_incarnation = incarnation
            self._book.drop_engine(engine.name, keep_incarnation=incarnation)
