"""The list of peers that agents hand to their engines; one read serves all sockets of a process."""

import threading
import time
from dataclasses import dataclass

import msgspec

from connector.protocol import MAX_PEERS, Peer, SetPeers
from controlplane.fleet.selectors import readable_engines


@dataclass(frozen=True, eq=False)
class PeerFrame:
    """The list as it goes over the wire. Equal lists are the same object, so sockets compare by identity."""

    message: SetPeers
    text: str


class _Newest:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._frame: PeerFrame | None = None

    def since(self, moment: float) -> PeerFrame:
        with self._lock:
            if self._frame is None or self._read_at < moment:
                began = time.monotonic()
                message = read_peers()
                if self._frame is None or self._frame.message != message:
                    self._frame = PeerFrame(message, msgspec.json.encode(message).decode())
                self._read_at = began
            return self._frame


def read_peers() -> SetPeers:
    """``None`` in it for a fleet beyond the bound: its engines go by signatures alone."""
    rows = list(readable_engines().values_list("name", "incarnation", "former_incarnations")[: MAX_PEERS + 1])
    if len(rows) > MAX_PEERS:
        return SetPeers(peers=None)
    return SetPeers(peers=tuple(Peer(name=name, incarnation=now, former=tuple(past)) for name, now, past in rows))


_newest = _Newest()


def newest_peers(moment: float) -> PeerFrame:
    """The list as read at ``moment`` (monotonic seconds) or later; reads anew only when the last reading is older."""
    return _newest.since(moment)
