"""Known turns as rows of columns: the numbers that are remembered of each, about 90 bytes a row."""

from array import array

ROW_BYTES = 300
"""What a turn costs beside its record and its hashes: columns, tables, the allocator's own."""


class Rows:
    """Columns by slot. Slots of turns that went are given to later ones.

    ``deadline`` and ``used_at`` are seconds of this process's monotonic clock. ``holding``, ``made_by`` and ``tenant``
    are numbers of names, 0 for none; ``continued_by`` is a hash, 0 for none; ``num_hashes``: of the chain as added.
    """

    def __init__(self) -> None:
        self.deadline, self.used_at = array("d"), array("d")
        self.continued_by = array("Q")
        self.index, self.num_tokens, self.num_prompt_tokens = array("I"), array("I"), array("I")
        self.tenant, self.holding, self.made_by = array("I"), array("I"), array("I")
        self.place, self.num_bytes = array("I"), array("I")
        self.session_next, self.session_prev = array("I"), array("I")
        self.num_hashes, self.ended = array("H"), array("B")
        self._numbers = (
            *(self.deadline, self.used_at, self.continued_by, self.index, self.num_tokens, self.num_prompt_tokens),
            *(self.tenant, self.holding, self.made_by, self.place, self.num_bytes),
            *(self.session_next, self.session_prev, self.num_hashes, self.ended),
        )
        self._free: list[int] = []
        self.num_taken = 0

    def take(self) -> int:
        """A slot whose numbers are all 0."""
        self.num_taken += 1
        if self._free:
            return self._free.pop()
        for column in self._numbers:
            column.append(0)
        return len(self.ended) - 1

    def give_back(self, slot: int) -> None:
        for column in self._numbers:
            column[slot] = 0
        self._free.append(slot)
        self.num_taken -= 1
