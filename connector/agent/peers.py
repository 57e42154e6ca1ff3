"""Whose offers the engine may read, as the control plane last said: on disk, and to each engine that understands it."""

import asyncio
import logging
from collections.abc import Callable

from connector.agent.state import StateDirectory
from connector.protocol import PEERS_SINCE, AgentToEngine, SetPeers

logger = logging.getLogger(__name__)


class PeerDesk:
    """``wanted`` starts as the list on disk. ``send`` is the link's, which refuses while there is no engine."""

    def __init__(self, state: StateDirectory, send: Callable[[AgentToEngine], bool]) -> None:
        self.wanted = state.load_peers()
        self._state = state
        self._send = send
        self._engine_protocol = 0

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
        self._push()

    def engine_answered(self, protocol: int) -> None:
        """The engine said hello; one that speaks an older protocol would take the list for garbage."""
        self._engine_protocol = protocol
        self._push()

    def _push(self) -> None:
        if self.wanted is not None and self._engine_protocol >= PEERS_SINCE:
            self._send(self.wanted)
