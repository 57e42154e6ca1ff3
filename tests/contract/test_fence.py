"""The fence's words: slots are exclusive while held, generations never repeat, landings are zero when taken."""

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connector.engine import fence
from connector.engine.fence import NUM_LANDING_WORDS, NUM_LEASE_WORDS, WORD_BYTES, FenceMemory, FenceSlots

DETERMINISTIC = settings(derandomize=True, deadline=None, max_examples=100)


def peek(memory: FenceMemory, address: int) -> int:
    """What a peer's one-sided READ of this address would bring."""
    assert memory.address <= address <= memory.address + memory.num_bytes - WORD_BYTES
    return ctypes.c_uint64.from_address(address).value


def word_of(memory: FenceMemory, slot: int) -> int:
    return peek(memory, memory.address + WORD_BYTES * slot)


# ---------------------------------------------------------------- the source's words


def test_a_word_is_up_from_raise_to_drop() -> None:
    memory = FenceMemory()
    assert word_of(memory, 5) == 0
    memory.raise_word("r", 5, 2**63 + 1)
    assert word_of(memory, 5) == 2**63 + 1
    memory.drop_word("r")
    assert word_of(memory, 5) == 0


def test_dropping_touches_only_its_own_word() -> None:
    memory = FenceMemory()
    memory.raise_word("a", 0, 11)
    memory.raise_word("b", NUM_LEASE_WORDS - 1, 12)
    memory.drop_word("a")
    memory.drop_word("a")
    memory.drop_word("unknown")
    assert (word_of(memory, 0), word_of(memory, NUM_LEASE_WORDS - 1)) == (0, 12)


def test_a_drop_after_the_slot_went_to_another_request_does_not_fell_its_word() -> None:
    memory = FenceMemory()
    memory.raise_word("old", 3, 11)
    memory.drop_word("old")
    memory.raise_word("new", 3, 12)
    memory.drop_word("old")
    assert word_of(memory, 3) == 12


# ---------------------------------------------------------------- landings


def test_a_landing_is_zeroed_and_exclusive_until_returned() -> None:
    memory = FenceMemory()
    taken = [memory.take_landing() for _ in range(NUM_LANDING_WORDS)]
    assert memory.take_landing() is None
    assert len(set(taken)) == NUM_LANDING_WORDS
    first = taken[0]
    assert first is not None
    ctypes.c_uint64.from_address(memory.word_address(first)).value = 99  # as NIXL would
    assert memory.value(first) == 99
    memory.return_landing(first)
    assert memory.take_landing() == first
    assert memory.value(first) == 0


def test_landings_lie_behind_the_lease_words() -> None:
    """A late answer that lands in a lease's word would forge or fell a lease."""
    memory = FenceMemory()
    landings = [memory.take_landing() for _ in range(NUM_LANDING_WORDS)]
    assert all(index is not None and index >= NUM_LEASE_WORDS for index in landings)
    assert memory.num_bytes == WORD_BYTES * (NUM_LEASE_WORDS + NUM_LANDING_WORDS)


# ---------------------------------------------------------------- slots


def test_a_request_keeps_its_slot_and_generation() -> None:
    slots = FenceSlots()
    assert slots.assign("r") == slots.assign("r") == slots.get("r")
    assert slots.get("other") is None


def test_without_a_free_slot_there_is_no_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "NUM_LEASE_WORDS", 2)
    slots = FenceSlots()
    assert slots.assign("a") is not None
    assert slots.assign("b") is not None
    assert slots.assign("c") is None
    assert slots.release("a") is True
    assert slots.assign("c") is not None


def test_releasing_twice_frees_the_slot_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "NUM_LEASE_WORDS", 2)
    slots = FenceSlots()
    slots.assign("a")
    assert (slots.release("a"), slots.release("a"), slots.release("never")) == (True, False, False)
    assigned = [slots.assign(name) for name in "bcd"]
    assert assigned[2] is None


def test_a_generation_fits_a_word_and_is_never_the_zero_of_a_free_one() -> None:
    for _ in range(50):
        assigned = FenceSlots().assign("r")
        assert assigned is not None
        assert 0 < assigned[1] < 2**64


def test_two_starts_of_an_engine_do_not_share_generations() -> None:
    """A reader with an offer of the previous incarnation must not find its generation by chance."""
    first = {slots.assign("r") for slots in (FenceSlots() for _ in range(50))}
    assert len(first) == 50


@DETERMINISTIC
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_slots_are_never_shared_and_generations_never_repeat(steps: list[tuple[bool, int]]) -> None:
    slots = FenceSlots()
    slots._free = type(slots._free)(range(3))
    held: dict[str, tuple[int, int]] = {}
    generations: set[int] = set()
    for is_assign, number in steps:
        name = str(number)
        if not is_assign:
            assert slots.release(name) == (held.pop(name, None) is not None)
        elif (assigned := slots.assign(name)) is None:
            assert len(held) == 3
        elif name in held:
            assert assigned == held[name]
        else:
            assert assigned[0] not in {slot for slot, _ in held.values()}
            assert assigned[1] not in generations
            generations.add(assigned[1])
            held[name] = assigned
