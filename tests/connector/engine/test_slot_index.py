"""The index: finds every slot by its key, among few others, whatever was added and taken out before."""

from hypothesis import given, settings
from hypothesis import strategies as st

from connector.engine.slot_index import SlotIndex


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.integers(0, 20)), max_size=40))
def test_it_holds_what_a_dictionary_would(steps: list[tuple[bool, int, int]]) -> None:
    index, key_of = SlotIndex(8), dict[int, int]()
    for is_added, slot, key in steps:
        if is_added and slot not in key_of:
            index.add(key, slot)
            key_of[slot] = key
        elif not is_added and slot in key_of:
            index.discard(key_of.pop(slot), slot)
        for wanted in range(21):
            found = list(index.candidates(wanted))
            assert len(found) == len(set(found))
            assert {slot for slot, known in key_of.items() if known == wanted} <= set(found) <= set(key_of)


def test_the_last_added_is_found_first() -> None:
    index = SlotIndex(8)
    for slot in (3, 1, 2):
        index.add("key", slot)
    assert list(index.candidates("key")) == [2, 1, 3]


def test_taking_out_what_is_not_there_changes_nothing() -> None:
    index = SlotIndex(8)
    index.add("key", 3)
    index.discard("key", 4)
    index.discard("other", 5)
    assert list(index.candidates("key")) == [3]
