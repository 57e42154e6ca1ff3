"""Where each session stands: its last turn, for numbering turns and linking their traces."""

from dataclasses import dataclass

MAX_SESSIONS = 200_000


@dataclass(frozen=True, slots=True)
class SpanRef:
    """A span of an earlier trace, to link to."""

    trace_id: int
    span_id: int


@dataclass(slots=True)
class SessionState:
    """``last_index`` is the number of the last turn started, from 0."""

    last_index: int
    last_turn_id: str
    last_span: SpanRef | None = None


class Sessions:
    """Bounded; a session that was forgotten starts to count from 0 again unless a lease of it is still held."""

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._max = max_sessions
        self._states: dict[str, SessionState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def last(self, session_id: str) -> SessionState | None:
        return self._states.get(session_id)

    def start_turn(self, session_id: str, turn_id: str, span: SpanRef | None) -> int:
        """Numbers a new turn of the session."""
        state = self._states.pop(session_id, None)
        index = 0 if state is None else state.last_index + 1
        self._store(session_id, SessionState(index, turn_id, span))
        return index

    def observe(self, session_id: str, index: int, turn_id: str) -> None:
        """A lease tells of a turn that another process numbered."""
        state = self._states.get(session_id)
        if state is None or state.last_index < index:
            self._store(session_id, SessionState(index, turn_id))

    def _store(self, session_id: str, state: SessionState) -> None:
        self._states[session_id] = state
        if len(self._states) > self._max:
            del self._states[next(iter(self._states))]
