"""Where each session stands: its last turn, for numbering turns and linking their traces."""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from connector.router.known import KnownTurn

MAX_SESSIONS = 100_000


class SpanRef(msgspec.Struct, frozen=True):
    """A span of an earlier trace, to link to."""

    trace_id: int
    span_id: int


class SessionState(msgspec.Struct, frozen=True):
    """``last_index`` is the number of the last turn started, from 0."""

    last_index: int
    last_turn_id: str
    last_span: SpanRef | None = None


class Sessions:
    """Bounded, least recently used out first: then a session counts on from its turns in the index, if any are left.

    What other routers numbered is known from the index as well.
    """

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._max = max_sessions
        self._states: OrderedDict[str, SessionState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def last(self, session_id: str, turns: Sequence[KnownTurn]) -> SessionState | None:
        """``turns``: those of the session that the index has, the latest first."""
        own = self._states.get(session_id)
        newest = turns[0] if len(turns) == 1 else max(turns, key=lambda turn: turn.index, default=None)
        if newest is None or (own is not None and newest.index <= own.last_index):
            return own
        return SessionState(newest.index, newest.turn_id)

    def start_turn(self, session_id: str, turn_id: str, last: SessionState | None, span: SpanRef | None) -> int:
        """Numbers a new turn of the session; ``last`` is where the session stood."""
        index = 0 if last is None else last.last_index + 1
        self._keep(session_id, SessionState(index, turn_id, span))
        return index

    def learn(self, session_id: str, index: int, turn_id: str) -> None:
        """Another router numbered a turn of the session, which may leave nothing in the index."""
        last = self._states.get(session_id)
        if last is None or last.last_index < index:
            self._keep(session_id, SessionState(index, turn_id))

    def _keep(self, session_id: str, state: SessionState) -> None:
        self._states[session_id] = state
        self._states.move_to_end(session_id)
        if len(self._states) > self._max:
            self._states.popitem(last=False)
