"""Finds what a new prompt extends: the session that it goes on with, and the lease that it may reuse.

Longest common prefix first. Among turns that share it, in this order: the same session, the one whose reply the new
prompt quotes, one that nobody continued yet, the most recent.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from connector.protocol import Decision
from connector.router.fleet import Fleet
from connector.router.index import HeldLease, KnownTurn, TurnIndex
from connector.router.replies import digest_in_prompt
from connector.router.requests import Endpoint
from connector.router.rewriting import has_rewritten

MARGIN_SECONDS = 5.0
"""Prefill engines decline a lease in its last 5 s, so it isn't offered either."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """``session_id`` is empty unless the client keyed its conversation. ``messages``: of a chat, one per hash;
    ``parts``: their own hashes, packed.
    """

    tenant: str
    session_id: str
    chain: Sequence[str]
    endpoint: Endpoint = Endpoint.CHAT
    messages: Sequence[object] | None = None
    parts: bytes = b""

    @property
    def tail(self) -> str:
        return self.chain[-1] if self.chain else ""

    def reply_after(self, position: int) -> bytes:
        """Digest of the reply that follows the first ``position`` messages; empty if there is none."""
        if self.messages is None or position >= len(self.messages):
            return b""
        return digest_in_prompt(self.endpoint, self.messages, position)


@dataclass(slots=True)
class Match:
    """``awaited``: a better source whose notice is outstanding. ``lost``: why the best source has no usable lease."""

    joined: KnownTurn | None = None
    source: KnownTurn | None = None
    awaited: KnownTurn | None = None
    lost: Decision | None = None
    num_common: int = 0

    @property
    def lease(self) -> HeldLease | None:
        return self.source.lease if self.source else None


class Matcher:
    """Reads index and fleet; changes neither."""

    def __init__(self, index: TurnIndex, fleet: Fleet) -> None:
        self._index = index
        self._fleet = fleet

    def match(self, prompt: Prompt, may_wait: bool = True) -> Match:
        """The best match as of now. Without a session id, ``joined`` is the turn whose session the prompt goes on.

        ``may_wait`` false takes what is there and leaves ``awaited`` empty.
        """
        match = Match()
        is_joining = not prompt.session_id
        for position in range(len(prompt.chain), 0, -1):
            sharing = self._index.sharing(prompt.chain[position - 1])
            if not sharing:
                continue
            if is_joining:
                is_joining = not self._join(match, prompt, position, sharing)
            if match.source is None and match.awaited is None:
                self._find_source(match, prompt, position, sharing, may_wait)
            if (match.source or match.awaited) and not is_joining:
                return match
        if match.source is None and match.awaited is None and prompt.session_id:
            self._fall_back_to_session(match, prompt, may_wait)
        if is_joining and match.joined is None and match.num_common:
            self._join_rewritten(match, prompt)
        return match

    def _join_rewritten(self, match: Match, prompt: Prompt) -> None:
        """A compacted or edited history extends no turn, yet it goes on with the conversation of one."""
        for turn in self._index.sharing(prompt.chain[match.num_common - 1]):
            is_free = turn.tenant == prompt.tenant and turn.continued_by in ("", prompt.tail)
            if is_free and has_rewritten(turn.parts, prompt.parts):
                match.joined = turn
                return

    def _rank(self, prompt: Prompt, position: int, turns: list[KnownTurn]) -> list[KnownTurn]:
        if len(turns) < 2:
            return turns
        reply = prompt.reply_after(position) if any(turn.reply for turn in turns) else b""
        tail = prompt.tail

        def order(turn: KnownTurn) -> tuple[bool, int, bool]:
            quoted = 1 if not reply or not turn.reply else 0 if turn.reply == reply else 2
            is_taken = turn.continued_by not in ("", tail)
            return turn.session_id != prompt.session_id, quoted, is_taken

        return sorted(turns, key=order)

    def _join(self, match: Match, prompt: Prompt, position: int, sharing: list[KnownTurn]) -> bool:
        """True when joining is decided: at the longest whole prompt that the new one strictly extends."""
        prefix = prompt.chain[position - 1]
        if position == len(prompt.chain):
            return False
        whole = [turn for turn in sharing if turn.tail == prefix and turn.tenant == prompt.tenant]
        free = [turn for turn in whole if turn.continued_by in ("", prompt.tail)]
        if free:
            match.joined = self._rank(prompt, position, free)[0]
        return bool(whole)

    def _find_source(
        self, match: Match, prompt: Prompt, position: int, sharing: list[KnownTurn], may_wait: bool
    ) -> None:
        ranked = self._rank(prompt, position, [turn for turn in sharing if self._may_serve(match, turn)])
        if match.joined in ranked:
            ranked = [match.joined, *(turn for turn in ranked if turn is not match.joined)]
        for turn in ranked:
            if turn.tenant != prompt.tenant:
                continue
            if may_wait and self._is_awaited(prompt, position, turn):
                match.awaited = turn
                return
            reason = self.reason_unusable(turn)
            if reason is None:
                match.source, match.num_common = turn, position
                return
            self._note_lost(match, reason)

    def _may_serve(self, match: Match, turn: KnownTurn) -> bool:
        """Leaves out turns that have nothing and can't get anything, which in a crowd are nearly all."""
        if turn.lease is not None or turn.notice.is_outstanding:
            return True
        self._note_lost(match, turn.ended or Decision.NO_PLACEMENT)
        return False

    def _fall_back_to_session(self, match: Match, prompt: Prompt, may_wait: bool) -> None:
        """Same session, no whole message in common (a changed first line): the engine still finds equal blocks."""
        for turn in self._index.of_session(prompt.session_id):
            if may_wait and turn.notice.is_outstanding and not turn.is_running:
                match.awaited = turn
                return
            reason = self.reason_unusable(turn)
            if reason is None:
                match.source = turn
                return
            self._note_lost(match, reason)

    def _is_awaited(self, prompt: Prompt, position: int, turn: KnownTurn) -> bool:
        """Its lease is about to be known. A turn that still runs counts only if the prompt must contain its reply."""
        if not turn.notice.is_outstanding:
            return False
        extends = turn.tail == prompt.chain[position - 1] and position < len(prompt.chain)
        return extends or (not turn.is_running and turn.session_id == prompt.session_id)

    def reason_unusable(self, turn: KnownTurn) -> Decision | None:
        """Absent when the turn's lease can be offered now."""
        lease = turn.lease
        if lease is None:
            return turn.ended or Decision.NO_PLACEMENT
        engine = self._fleet.get(lease.engine)
        if engine is None or not engine.is_up or engine.incarnation != lease.incarnation:
            return Decision.SOURCE_LOST
        if lease.deadline - time.monotonic() < MARGIN_SECONDS:
            return Decision.EXPIRED
        return None

    def _note_lost(self, match: Match, reason: Decision) -> None:
        """The first reason that tells more than ``no_placement`` is kept."""
        if match.lost is None or match.lost is Decision.NO_PLACEMENT:
            match.lost = reason
