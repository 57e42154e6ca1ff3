"""What bounds a page's memory at the server: pure parts."""

import pytest

from controlplane.dashboard.pace import Pace
from controlplane.dashboard.pending import PendingChanges


def test_page_is_behind_until_it_confirms() -> None:
    pace = Pace(max_in_flight=2)
    assert [pace.next_sequence(), pace.next_sequence()] == [1, 2]
    assert pace.is_behind
    pace.confirm(1)
    assert not pace.is_behind
    pace.confirm(2)
    assert pace.num_in_flight == 0


def test_late_confirmation_changes_nothing() -> None:
    pace = Pace()
    pace.next_sequence()
    pace.next_sequence()
    pace.confirm(2)
    pace.confirm(1)
    assert pace.num_in_flight == 0


@pytest.mark.parametrize("sequence", [-1, 0, 2])
def test_frame_that_was_never_sent_cannot_be_confirmed(sequence: int) -> None:
    pace = Pace()
    pace.next_sequence()
    with pytest.raises(ValueError, match="never sent"):
        pace.confirm(sequence)


def test_repeated_changes_are_one() -> None:
    pending = PendingChanges()
    pending.add("transfer", ["a", "b"])
    pending.add("transfer", ["b"])
    assert pending.num_marks == 2
    assert pending.take().ids == {"transfer": frozenset({"a", "b"})}
    assert not pending.take()


def test_too_many_changes_of_a_kind_collapse_into_one_mark() -> None:
    pending = PendingChanges(max_ids_per_kind=3)
    pending.add("transfer", ["a", "b", "c", "d"])
    pending.add("transfer", ["e"])
    pending.add("turn", ["t"])
    assert pending.num_marks == 2
    assert pending.take().ids == {"transfer": None, "turn": frozenset({"t"})}
