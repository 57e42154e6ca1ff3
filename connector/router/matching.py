"""Finds what a new prompt extends: the session that it goes on with, and the lease that it may reuse.

Longest common prefix first. Among turns that share it, in this order: the same session, the one whose reply the new
prompt quotes, one that nobody continued yet, the most recent.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from connector.protocol import Decision
from connector.router.awaiting import Notice
from connector.router.chain import PACKED_BYTES
from connector.router.fleet import Fleet
from connector.router.index import TurnIndex
from connector.router.known import KnownTurn
from connector.router.prefixes import Share
from connector.router.replies import digest_in_prompt
from connector.router.requests import Endpoint
from connector.router.rewriting import has_rewritten

MARGIN_SECONDS = 5.0
"""Prefill engines decline a lease in its last 5 s, so it isn't offered either."""


class Prompt(msgspec.Struct, frozen=True):
    """``session_id`` is empty unless the client keyed its conversation. ``chain``: all hashes, packed (``pack_chain``);
    ``messages``: of a chat, one per hash; ``parts``: their own hashes, packed.
    """

    tenant: str
    session_id: str
    chain: bytes
    endpoint: Endpoint = Endpoint.CHAT
    messages: Sequence[object] | None = None
    parts: bytes = b""

    @property
    def tail(self) -> bytes:
        return self.chain[-PACKED_BYTES:]

    @property
    def num_hashes(self) -> int:
        return len(self.chain) // PACKED_BYTES

    def reply_after(self, position: int) -> bytes:
        """Digest of the reply that follows the first ``position`` messages; empty if there is none."""
        if self.messages is None or position >= len(self.messages):
            return b""
        return digest_in_prompt(self.endpoint, self.messages, position)


@dataclass(frozen=True, slots=True)
class Awaited:
    """A better source whose notice is outstanding, and where it is expected from."""

    notice: Notice
    engine: str


@dataclass(slots=True)
class Match:
    """``lost``: why the best source has no usable lease. ``twins``: turns with the very same prompt.

    The turns are good until the index changes, so not across an await.
    """

    joined: KnownTurn | None = None
    source: KnownTurn | None = None
    awaited: Awaited | None = None
    lost: Decision | None = None
    num_common: int = 0
    twins: list[KnownTurn] = field(default_factory=list)

    def is_continued_by(self, prompt: Prompt) -> bool:
        """The prompt begins with the source's whole prompt, and goes on."""
        end = self.num_common * PACKED_BYTES
        if self.source is None or not 0 < end < len(prompt.chain):
            return False
        return self.source.tail == prompt.chain[end - PACKED_BYTES : end]


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
        shares = self._index.shares(prompt.chain)
        for share in shares:
            whole = self._index.whole(share)
            if share.num_hashes == prompt.num_hashes:
                match.twins.extend(whole)
            elif is_joining:
                is_joining = not self._join(match, prompt, share.num_hashes, whole)
            if match.source is None and match.awaited is None:
                self._find_source(match, prompt, share, may_wait)
            if (match.source or match.awaited) and not is_joining:
                return match
        if match.source is None and match.awaited is None and prompt.session_id:
            self._fall_back_to_session(match, prompt, may_wait)
        if is_joining and match.joined is None and match.num_common:
            self._join_rewritten(match, prompt, shares)
        if match.source is None and self._index.was_forgotten(prompt.chain):
            match.lost = Decision.QUOTA
        return match

    def _join_rewritten(self, match: Match, prompt: Prompt, shares: list[Share]) -> None:
        """A compacted or edited history extends no turn, yet it goes on with the conversation of one."""
        common = next(share for share in shares if share.num_hashes == match.num_common)
        for turn in self._index.sharing(common):
            is_free = turn.tenant == prompt.tenant and turn.continued_by in (b"", prompt.tail)
            if is_free and has_rewritten(turn.parts, prompt.parts):
                match.joined = turn
                return

    def _rank(self, prompt: Prompt, position: int, turns: list[KnownTurn]) -> list[KnownTurn]:
        if len(turns) < 2:
            return turns
        reply = prompt.reply_after(position) if any(turn.reply for turn in turns) else b""
        tail, session = prompt.tail, prompt.session_id

        def order(turn: KnownTurn) -> tuple[bool, int, bool]:
            quoted = 1 if not reply or not turn.reply else 0 if turn.reply == reply else 2
            is_taken = turn.continued_by not in (b"", tail)
            return not turn.is_of(session), quoted, is_taken

        return sorted(turns, key=order)

    def _join(self, match: Match, prompt: Prompt, position: int, whole: list[KnownTurn]) -> bool:
        """True when joining is decided: at the longest whole prompt that the new one strictly extends."""
        own = [turn for turn in whole if turn.tenant == prompt.tenant]
        free = [turn for turn in own if turn.continued_by in (b"", prompt.tail)]
        if free:
            match.joined = self._rank(prompt, position, free)[0]
        return bool(own)

    def _find_source(self, match: Match, prompt: Prompt, share: Share, may_wait: bool) -> None:
        sharing = [turn for turn in self._index.sharing(share) if self._may_serve(match, turn)]
        ranked = self._rank(prompt, share.num_hashes, sharing)
        if match.joined in ranked:
            ranked = [match.joined, *(turn for turn in ranked if turn != match.joined)]
        for turn in ranked:
            if turn.tenant != prompt.tenant:
                continue
            if may_wait and self._is_awaited(prompt, share, turn):
                match.awaited = _awaited(turn)
                return
            reason = self.reason_unusable(turn)
            if reason is None:
                match.source, match.num_common = turn, share.num_hashes
                return
            self._note_lost(match, reason)

    def _may_serve(self, match: Match, turn: KnownTurn) -> bool:
        """Leaves out turns that have nothing and can't get anything, which in a crowd are nearly all."""
        if turn.has_lease or turn.is_awaited:
            return True
        self._note_lost(match, turn.ended or Decision.NO_PLACEMENT)
        return False

    def _fall_back_to_session(self, match: Match, prompt: Prompt, may_wait: bool) -> None:
        """Same session, no whole message in common (a changed first line): the engine still finds equal blocks."""
        for turn in self._index.of_session(prompt.session_id):
            if may_wait and turn.is_awaited and not turn.is_running:
                match.awaited = _awaited(turn)
                return
            reason = self.reason_unusable(turn)
            if reason is None:
                match.source = turn
                return
            self._note_lost(match, reason)

    def _is_awaited(self, prompt: Prompt, share: Share, turn: KnownTurn) -> bool:
        """Its lease is about to be known. A turn that still runs counts only if the prompt must contain its reply."""
        if not turn.is_awaited:
            return False
        extends = share.num_hashes < prompt.num_hashes and turn in self._index.whole(share)
        return extends or (not turn.is_running and turn.session_id == prompt.session_id)

    def reason_unusable(self, turn: KnownTurn) -> Decision | None:
        """Absent when the turn's lease can be offered now."""
        if not turn.has_lease:
            return turn.ended or Decision.NO_PLACEMENT
        name, incarnation = turn.holder
        engine = self._fleet.get(name)
        if engine is None or not engine.is_up or engine.incarnation != incarnation:
            return Decision.SOURCE_LOST
        if turn.deadline - time.monotonic() < MARGIN_SECONDS:
            return Decision.EXPIRED
        return None

    def _note_lost(self, match: Match, reason: Decision) -> None:
        """The first reason that tells more than ``no_placement`` is kept."""
        if match.lost is None or match.lost is Decision.NO_PLACEMENT:
            match.lost = reason


def _awaited(turn: KnownTurn) -> Awaited | None:
    return Awaited(turn.live.notice, turn.engine) if turn.live else None
