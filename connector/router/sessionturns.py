"""The turns of each session, the latest first: a list through the rows, whose head a directory finds."""

from connector.router.directory import Directory
from connector.router.records import Records
from connector.router.rows import Rows


class SessionTurns:
    """Every method but ``latest`` takes the same time however many turns a session has."""

    def __init__(self, rows: Rows, records: Records) -> None:
        self._rows, self._records = rows, records
        self.heads = Directory[str]()

    def latest(self, session_id: str, limit: int) -> list[int]:
        found, link, following = list[int](), self._head(session_id), self._rows.session_next
        while link and len(found) < limit:
            found.append(link - 1)
            link = following[link - 1]
        return found

    def join(self, slot: int, session_id: str) -> None:
        """The turn, whose record is there, becomes the session's latest."""
        rows, head = self._rows, self._head(session_id)
        rows.session_next[slot] = head
        if head:
            rows.session_prev[head - 1] = slot + 1
            self.heads.move(session_id, head - 1, slot)
        else:
            self.heads.add(session_id, slot)

    def leave(self, slot: int, session_id: str) -> None:
        rows = self._rows
        after, before = rows.session_next[slot], rows.session_prev[slot]
        if after:
            rows.session_prev[after - 1] = before
        if before:
            rows.session_next[before - 1] = after
        elif after:
            self.heads.move(session_id, slot, after - 1)
        else:
            self.heads.remove(session_id, slot)

    def _head(self, session_id: str) -> int:
        for slot in self.heads.find(session_id):
            if self._records.is_of_session(slot, session_id):
                return slot + 1
        return 0
