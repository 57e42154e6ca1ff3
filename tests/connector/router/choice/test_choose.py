"""The choice among candidates, from tables and from anything that costs can be."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from connector.router.choice.choose import (
    HOLDER_SHARE,
    TIE_SECONDS,
    Candidate,
    Choice,
    Why,
    WhyNot,
    choose,
)
from connector.router.choice.costs import Cost

NOISE_SECONDS = 0.15
"""As that of turns of about a second."""

SECONDS = st.floats(0, 100) | st.sampled_from((0.0, 0.0005, 0.01, 0.05))
COSTS = st.builds(Cost, SECONDS, SECONDS, SECONDS, SECONDS)


@st.composite
def fleets(draw: st.DrawFn) -> list[Candidate]:
    count = draw(st.integers(1, 8))
    holder = draw(st.integers(0, 12))
    return [
        Candidate(f"e{i}", draw(COSTS), draw(st.integers(0, 3)), draw(st.booleans()), is_holder=i == holder)
        for i in range(count)
    ]


def made(name: str, queue: float = 0.0, transfer: float = 0.0, *, picked_at: int = 0, **flags: bool) -> Candidate:
    return Candidate(name, Cost(queue=queue, transfer=transfer), picked_at, **flags)


def chosen(*candidates: Candidate) -> Choice:
    choice = choose(candidates, NOISE_SECONDS)
    assert choice is not None
    return choice


@given(fleets())
def test_nothing_dominated_is_ever_chosen_but_a_holder_within_its_margin(fleet: list[Candidate]) -> None:
    one = chosen(*fleet).chosen
    usable = [c for c in fleet if not c.is_avoided] or fleet
    if one.is_holder:
        least = min(c.cost.total for c in usable)
        assert one.cost.total <= least + max(least * HOLDER_SHARE, NOISE_SECONDS)
    else:
        assert not any(one.cost.is_dominated_by(other.cost) for other in usable)
        assert one.cost.total <= min(c.cost.total for c in usable) + TIE_SECONDS


@given(fleets())
def test_avoided_engines_are_chosen_only_if_all_are(fleet: list[Candidate]) -> None:
    one = chosen(*fleet).chosen
    assert not one.is_avoided or all(c.is_avoided for c in fleet)


@given(fleets())
def test_every_other_candidate_is_rejected_once_with_a_reason(fleet: list[Candidate]) -> None:
    choice = chosen(*fleet)
    names = [choice.chosen.name, *(one.name for one, _ in choice.rejected)]
    assert sorted(names) == sorted(c.name for c in fleet)
    for one, reason in choice.rejected:
        assert (reason is WhyNot.AVOIDED) == (one.is_avoided and not choice.chosen.is_avoided)
        if reason is WhyNot.COSTLIER:
            assert one.cost.total >= choice.chosen.cost.total


@given(fleets(), st.randoms(use_true_random=False))
def test_order_of_candidates_changes_nothing(fleet: list[Candidate], random: object) -> None:
    shuffled = list(fleet)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert chosen(*fleet).chosen == chosen(*shuffled).chosen


@given(st.integers(2, 8), COSTS)
def test_equal_costs_take_turns(count: int, cost: Cost) -> None:
    fleet = {f"e{i}": Candidate(f"e{i}", cost) for i in range(count)}
    picked = []
    for number in range(1, 3 * count + 1):
        name = chosen(*fleet.values()).chosen.name
        fleet[name] = replace(fleet[name], picked_at=number)
        picked.append(name)
    for start in range(0, 3 * count, count):
        assert set(picked[start : start + count]) == set(fleet)


def test_none_of_none() -> None:
    assert choose([]) is None


@pytest.mark.parametrize(
    ("candidates", "name", "why"),
    [
        ([made("a", 9)], "a", Why.ONLY),
        ([made("a", 9, is_avoided=True)], "a", Why.ONLY),
        ([made("a", 0.14, is_holder=True), made("b")], "a", Why.HOLDER),
        ([made("a", 0.16, is_holder=True), made("b")], "b", Why.CHEAPEST),
        ([made("a", 1.49, is_holder=True), made("b", 1.0)], "a", Why.HOLDER),
        ([made("a", 1.51, is_holder=True), made("b", 1.0)], "b", Why.CHEAPEST),
        ([made("a", is_holder=True, is_avoided=True), made("b", 5)], "b", Why.CHEAPEST),
        ([made("a", 1, 0), made("b", 0, 0.5)], "b", Why.CHEAPEST),
        ([made("a", 1, is_avoided=True), made("b", 2, is_avoided=True)], "a", Why.CHEAPEST),
        ([made("a", 1.0, picked_at=5), made("b", 0.9999, 0.0004, picked_at=2)], "b", Why.CHEAPEST),
    ],
)
def test_choices(candidates: list[Candidate], name: str, why: Why) -> None:
    for order in itertools.permutations(candidates):
        choice = chosen(*order)
        assert (choice.chosen.name, choice.why) == (name, why)


def test_reasons_against_the_others() -> None:
    fleet = [
        made("holder", 0.03, is_holder=True),
        made("cheaper"),
        made("dear", 3),
        made("sick", is_avoided=True),
    ]
    assert {one.name: reason for one, reason in chosen(*fleet).rejected} == {
        "cheaper": WhyNot.WITHIN_MARGIN,
        "dear": WhyNot.COSTLIER,
        "sick": WhyNot.AVOIDED,
    }
    assert [reason for _, reason in chosen(made("a"), made("b", picked_at=1)).rejected] == [WhyNot.TIED]
