"""Whose offers the engine may read, as the control plane last said: on disk, and to each engine that understands it."""

import asyncio
import logging
from collections.abc import Callable

from connector.agent.state import StateDirectory
from connector.protocol import AgentToEngine, SetPeers

logger = logging.getLogger(__name__)


class PeerDesk:
    """``wanted`` starts as the list on disk. ``send`` is the link's, which refuses while there is no engine."""

    def __init__(self, state: StateDirectory, send: Callable[[AgentToEngine], bool]) -> None:
        self.wanted = state.load_peers()
        self._state = state
        self._send = send

    @property
    def num_listed(self) -> int | None:
        """Absent without a list: then the engine goes by signatures alone."""
        return len(self.wanted.peers) if self.wanted is not None and self.wanted.peers is not None else None

    async def accept(self, peers: SetPeers) -> None:
        """Hands it to the engine once it is on disk; a disk that fails is logged and doesn't hold the list up."""
        self.wanted = peers
        try:
            await asyncio.to_thread(self._state.store_peers, peers)
        except OSError as error:
            logger.error("peers_not_stored error=%s", error)
        logger.info("peers_received num_peers=%s", self.num_listed)
        self.push()

    def push(self) -> None:
        """To the engine, if both are there and it is no older than the message; after each hello as well."""
        if self.wanted is not None:
            self._send(self.wanted)
