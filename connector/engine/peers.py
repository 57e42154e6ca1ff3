"""Which engines of the fleet exist, as the control plane last said: whose offers are worth reading."""

from connector.protocol import Peer, SetPeers

UNKNOWN_ENGINE = "unknown_engine"
ENGINE_REPLACED = "engine_replaced"


class PeerBook:
    """One snapshot, replaced at once by the link thread. Without a list signatures alone decide."""

    def __init__(self) -> None:
        self._peers: dict[str, Peer] | None = None

    def set(self, message: SetPeers) -> None:
        self._peers = None if message.peers is None else {peer.name: peer for peer in message.peers}

    def reason_against(self, engine: str, incarnation: str) -> str:
        """``unknown_engine``, ``engine_replaced``, or nothing.

        An incarnation that isn't listed at all is believed: the list may lag behind a restart.
        """
        peers = self._peers
        if peers is None:
            return ""
        peer = peers.get(engine)
        if peer is None:
            return UNKNOWN_ENGINE
        is_former = incarnation in peer.former and incarnation != peer.incarnation
        return ENGINE_REPLACED if is_former else ""
