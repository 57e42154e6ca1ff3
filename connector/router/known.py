"""What the index says of one turn, and what it is told of a new one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from connector.protocol import Decision
from connector.router.awaiting import Notice
from connector.router.chain import PACKED_BYTES

if TYPE_CHECKING:
    from connector.router.index import TurnIndex


class HeldLease(msgspec.Struct, frozen=True):
    """A decode engine's lease as its feed tells it. ``deadline`` is on this process's monotonic clock."""

    lease_id: str
    engine: str
    incarnation: str
    offer: str
    deadline: float
    num_tokens: int


class NewTurn(msgspec.Struct, frozen=True):
    """A turn to remember. ``chain`` is packed and thinned; its last hash is the whole prompt.

    ``parts``: the messages' own hashes, packed (see ``rewriting``), empty for texts and for turns of other routers.
    """

    turn_id: str
    session_id: str
    tenant: str
    index: int
    chain: bytes
    is_running: bool = False
    parts: bytes = b""
    parent_turn_id: str = ""


@dataclass(slots=True)
class Live:
    """What only some turns have: those that run, whose notice is outstanding, or whose reply must be told apart."""

    notice: Notice
    is_running: bool = False
    reply: bytes = b""
    parent_turn_id: str = ""

    @property
    def is_over(self) -> bool:
        return not (self.is_running or self.reply or self.notice.is_outstanding)


class KnownTurn:
    """A turn whose prompt may be extended: a view of its row, good until the turn is removed, so not across an await.

    It outlives its lease, so that a conversation stays one session. ``continued_by`` is the last hash of the turn that
    went on from here: another continuation is a branch, and gets a session of its own. ``reply`` is the digest of the
    reply where it was needed; ``engine`` is where the reply was made. ``num_prompt_tokens``: 0 if unknown.
    """

    __slots__ = ("_at", "slot")

    def __init__(self, index: "TurnIndex", slot: int) -> None:
        self._at = index
        self.slot = slot

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KnownTurn) and self.slot == other.slot

    def __hash__(self) -> int:
        return self.slot

    @property
    def session_id(self) -> str:
        return self._at.records.get(self.slot).session_id

    @property
    def turn_id(self) -> str:
        return self._at.records.get(self.slot).turn_id

    @property
    def lease_id(self) -> str:
        """Empty without a lease."""
        return self._at.records.get(self.slot).lease_id

    @property
    def parts(self) -> bytes:
        return self._at.records.get(self.slot).parts

    @property
    def tenant(self) -> str:
        return self._at.tenant_of(self.slot)

    @property
    def index(self) -> int:
        return self._at.rows.index[self.slot]

    @property
    def head(self) -> bytes:
        """The first hash of the chain."""
        return self._at.tree.head(self.slot)

    @property
    def tail(self) -> bytes:
        return self._at.tree.tail(self.slot)

    @property
    def lease(self) -> HeldLease | None:
        """Whole, its offer spelled out: for the turn that was chosen."""
        return self._at.lease_of(self.slot)

    @property
    def has_lease(self) -> bool:
        return bool(self._at.rows.holding[self.slot])

    @property
    def offer(self) -> str:
        """Of its lease."""
        return self._at.records.get(self.slot).offer

    @property
    def deadline(self) -> float:
        """Of its lease."""
        return self._at.rows.deadline[self.slot]

    @deadline.setter
    def deadline(self, monotonic: float) -> None:
        self._at.rows.deadline[self.slot] = monotonic

    @property
    def holder(self) -> tuple[str, str]:
        """Engine and incarnation of its lease."""
        return self._at.holder_of(self.slot)

    @property
    def ended(self) -> Decision | None:
        """Why it has no lease any more."""
        return self._at.ended_of(self.slot)

    @property
    def continued_by(self) -> bytes:
        number = self._at.rows.continued_by[self.slot]
        return number.to_bytes(PACKED_BYTES) if number else b""

    @continued_by.setter
    def continued_by(self, tail: bytes) -> None:
        self._at.rows.continued_by[self.slot] = int.from_bytes(tail)

    @property
    def num_prompt_tokens(self) -> int:
        return self._at.rows.num_prompt_tokens[self.slot]

    @num_prompt_tokens.setter
    def num_prompt_tokens(self, count: int) -> None:
        self._at.rows.num_prompt_tokens[self.slot] = min(max(count, 0), 0xFFFFFFFF)

    @property
    def engine(self) -> str:
        return self._at.engine_of(self.slot)

    @engine.setter
    def engine(self, name: str) -> None:
        self._at.set_engine(self.slot, name)

    @property
    def live(self) -> Live | None:
        return self._at.live.get(self.slot)

    @property
    def is_running(self) -> bool:
        live = self._at.live.get(self.slot)
        return live is not None and live.is_running

    @property
    def is_awaited(self) -> bool:
        """Its lease notice is outstanding."""
        live = self._at.live.get(self.slot)
        return live is not None and live.notice.is_outstanding

    @property
    def reply(self) -> bytes:
        live = self._at.live.get(self.slot)
        return live.reply if live is not None else b""

    def is_of(self, session_id: str) -> bool:
        """Whether it is of the session."""
        return self._at.records.is_of_session(self.slot, session_id)

    def begins(self, other: "KnownTurn") -> bool:
        """Whether the other one's prompt goes on from this one's."""
        return self._at.tree.begins(self.slot, other.slot)

    def settle(self) -> None:
        """Its notice came, or won't."""
        live = self._at.live.get(self.slot)
        if live is not None:
            live.notice.settle()
            self._at.rest(self.slot)
