"""Index of known turns by the prefixes of their prompts; bounded, least recently used out first."""

from dataclasses import dataclass, field
from itertools import islice

from connector.protocol import Decision
from connector.router.awaiting import Notice

MAX_CANDIDATES = 32
"""Turns looked at per prefix or session: thousands may share a system prompt, and the latest serve as well as any."""

HASHES_PER_TURN = 32
"""The index holds at most this many hashes per allowed turn, on average."""


@dataclass(slots=True, eq=False)
class HeldLease:
    """A decode engine's lease as its feed tells it. ``deadline`` is on this process's monotonic clock."""

    lease_id: str
    engine: str
    incarnation: str
    offer: str
    deadline: float
    num_tokens: int


@dataclass(slots=True, eq=False)
class KnownTurn:
    """A turn whose prompt may be extended. It outlives its lease, so that a conversation stays one session.

    ``chain`` is thinned; its last hash is the whole prompt. ``continued_by`` is the last hash of the turn that went on
    from here: another continuation is a branch, and gets a session of its own. ``reply`` is the digest of the reply
    where it was needed; ``engine`` is where the reply was made. ``parts``: the messages' own hashes, packed (see
    ``rewriting``), empty for texts and for turns that other routers served. ``num_prompt_tokens``: 0 if unknown.
    """

    turn_id: str
    session_id: str
    tenant: str
    index: int
    chain: tuple[str, ...]
    is_running: bool = False
    lease: HeldLease | None = None
    ended: Decision | None = None
    notice: Notice = field(default_factory=Notice)
    continued_by: str = ""
    reply: bytes = b""
    engine: str = ""
    parent: "KnownTurn | None" = None
    parts: bytes = b""
    num_prompt_tokens: int = 0

    @property
    def tail(self) -> str:
        return self.chain[-1] if self.chain else ""


Bucket = KnownTurn | dict[str, KnownTurn]


class TurnIndex:
    """Finds the turns that share a prefix. Every method is synchronous and O(length of a chain) at most."""

    def __init__(self, max_turns: int) -> None:
        self._max_turns = max_turns
        self._turns: dict[str, KnownTurn] = {}
        self._by_hash: dict[str, Bucket] = {}
        self._by_session: dict[str, dict[str, KnownTurn]] = {}
        self._num_hashes = 0

    def __len__(self) -> int:
        return len(self._turns)

    def get(self, turn_id: str) -> KnownTurn | None:
        return self._turns.get(turn_id)

    def add(self, turn: KnownTurn) -> list[KnownTurn]:
        """Adds a turn; returns those that went to make room (never a running one)."""
        self._turns[turn.turn_id] = turn
        self._by_session.setdefault(turn.session_id, {})[turn.turn_id] = turn
        for prefix in turn.chain:
            self._add_hash(prefix, turn)
        self._num_hashes += len(turn.chain)
        return self._evict()

    def remove(self, turn: KnownTurn) -> None:
        if self._turns.pop(turn.turn_id, None) is None:
            return
        session = self._by_session[turn.session_id]
        del session[turn.turn_id]
        if not session:
            del self._by_session[turn.session_id]
        for prefix in turn.chain:
            self._remove_hash(prefix, turn)
        self._num_hashes -= len(turn.chain)

    def touch(self, turn: KnownTurn) -> None:
        """Marks a turn as used just now."""
        if turn.turn_id in self._turns:
            self._turns[turn.turn_id] = self._turns.pop(turn.turn_id)

    def sharing(self, prefix: str) -> list[KnownTurn]:
        """Turns whose prompt begins with the prefix, the latest first, at most ``MAX_CANDIDATES``."""
        bucket = self._by_hash.get(prefix)
        if bucket is None:
            return []
        if isinstance(bucket, KnownTurn):
            return [bucket]
        return list(islice(reversed(bucket.values()), MAX_CANDIDATES))

    def of_session(self, session_id: str) -> list[KnownTurn]:
        """The session's turns, the latest first, at most ``MAX_CANDIDATES``."""
        return list(islice(reversed(self._by_session.get(session_id, {}).values()), MAX_CANDIDATES))

    def _add_hash(self, prefix: str, turn: KnownTurn) -> None:
        bucket = self._by_hash.get(prefix)
        if bucket is None:
            self._by_hash[prefix] = turn
        elif isinstance(bucket, KnownTurn):
            self._by_hash[prefix] = {bucket.turn_id: bucket, turn.turn_id: turn}
        else:
            bucket[turn.turn_id] = turn

    def _remove_hash(self, prefix: str, turn: KnownTurn) -> None:
        bucket = self._by_hash.get(prefix)
        if bucket is turn:
            del self._by_hash[prefix]
        elif isinstance(bucket, dict):
            bucket.pop(turn.turn_id, None)
            if len(bucket) == 1:
                self._by_hash[prefix] = next(iter(bucket.values()))

    def _evict(self) -> list[KnownTurn]:
        evicted: list[KnownTurn] = []
        spared = 0
        while self._is_over() and spared < len(self._turns):
            oldest = next(iter(self._turns.values()))
            if oldest.is_running:
                self.touch(oldest)
                spared += 1
                continue
            self.remove(oldest)
            evicted.append(oldest)
        return evicted

    def _is_over(self) -> bool:
        return len(self._turns) > self._max_turns or self._num_hashes > self._max_turns * HASHES_PER_TURN
