"""Pairs of engines between which transfers fail: when they are put out of use, and how they come back."""

from typing import Any

import pytest

from connector.protocol import Decision
from connector.router.health.breaker import (
    FAILURES_TO_EJECT,
    FIRST_EJECTION_SECONDS,
    LEAST_SHARE,
    RAMP_SECONDS,
    Breaker,
    Signal,
)
from connector.router.health.pairs import MAX_PAIRS, Pairs
from tests.connector.router.choice.fleets import MODEL, Yard, chat, lease_of, placed
from tests.connector.router.conftest import Scene, assistant, user
from tests.connector.router.health.test_breaker import Clock
from tests.connector.router.waiting import eventually


@pytest.fixture
def yard() -> Yard:
    return Yard(2, 2)


def fail(pairs: Pairs, source: str = "d0", reader: str = "p0", times: int = FAILURES_TO_EJECT) -> None:
    for _ in range(times):
        pairs.note(source, reader, Decision.TRANSFER_FAILED)


def test_failures_in_a_row_put_the_pair_out_and_no_other(yard: Yard) -> None:
    fail(yard.pairs, times=FAILURES_TO_EJECT - 1)
    assert not yard.pairs.is_out("d0", "p0")
    yard.pairs.note("d0", "p0", Decision.TIMEOUT)
    assert yard.pairs.is_out("d0", "p0")
    assert [yard.pairs.is_out(*pair) for pair in (("d0", "p1"), ("d1", "p0"), ("p0", "d0"))] == [False] * 3
    assert yard.pairs.out() == ["d0>p0"]


@pytest.mark.parametrize("decision", [Decision.PULLED, Decision.TRIMMED_PREFIX_DIVERGED])
def test_what_gets_across_makes_failures_undone(yard: Yard, decision: Decision) -> None:
    for _ in range(10):
        fail(yard.pairs, times=FAILURES_TO_EJECT - 1)
        yard.pairs.note("d0", "p0", decision)
    assert not yard.pairs.is_out("d0", "p0")


OTHERS = [d for d in Decision if d not in (Decision.TRANSFER_FAILED, Decision.TIMEOUT)]


@pytest.mark.parametrize("decision", OTHERS)
def test_other_reasons_say_nothing_of_the_way(yard: Yard, decision: Decision) -> None:
    for _ in range(10):
        yard.pairs.note("d0", "p0", decision)
    assert not yard.pairs.is_out("d0", "p0")
    assert yard.pairs.out() == []


def test_one_trial_is_let_through_and_decides(yard: Yard) -> None:
    fail(yard.pairs)
    yard.clock.now += FIRST_EJECTION_SECONDS
    assert not yard.pairs.is_out("d0", "p0")
    yard.pairs.start("d0", "p0")
    assert yard.pairs.is_out("d0", "p0"), "others wait for the trial"
    yard.pairs.note("d0", "p0", Decision.TRANSFER_FAILED)
    yard.clock.now += FIRST_EJECTION_SECONDS
    assert yard.pairs.is_out("d0", "p0"), "twice as long"
    yard.clock.now += FIRST_EJECTION_SECONDS
    yard.pairs.start("d0", "p0")
    yard.pairs.note("d0", "p0", Decision.PULLED)
    assert not yard.pairs.is_out("d0", "p0")
    assert yard.pairs.out() == []


@pytest.mark.parametrize("name", ["d0", "p0"])
def test_restart_of_either_makes_it_another_pair(yard: Yard, name: str) -> None:
    fail(yard.pairs)
    yard.engine(name).feed_incarnation = "restarted"
    assert not yard.pairs.is_out("d0", "p0")
    fail(yard.pairs)
    assert yard.pairs.is_out("d0", "p0")


def test_pairs_are_bounded(yard: Yard) -> None:
    for number in range(2 * MAX_PAIRS):
        yard.pairs.note(f"x{number}", "p0", Decision.TIMEOUT)
    assert len(yard.pairs._breakers) == MAX_PAIRS


def test_prefill_is_chosen_where_the_lease_can_be_read(yard: Yard) -> None:
    """The shut way costs a recompute, so the other engine is cheaper; both shut, one is taken all the same."""
    placement = placed(lease=lease_of("d0", 8000), num_common=1, is_continued=True, holder="d0")
    request = chat("a" * 32_000, "b", "c")

    def chosen() -> str:
        plan = yard.chooser.plan(request, placement, MODEL)
        decoder = yard.chooser.decode(plan, placement, MODEL)
        assert decoder is not None
        engine = yard.chooser.prefill(plan, placement, MODEL, decoder)
        assert engine is not None
        yard.chooser.end_prefill(plan, engine)
        return engine.name

    fail(yard.pairs, "d0", "p0")
    assert {chosen() for _ in range(4)} == {"p1"}
    fail(yard.pairs, "d0", "p1")
    assert chosen() in ("p0", "p1")


async def test_turns_go_on_without_the_offer_and_with_it_once_the_trial_worked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(scene.live.pairs, "_clock", clock)
    messages: list[dict[str, Any]] = [user("hi")]

    async def turn() -> str | None:
        num_known = len(scene.live.book)
        await scene.chat(messages)
        messages.extend((assistant("Hello you"), user("more")))
        await eventually(lambda: len(scene.live.book) > num_known, "the turn's lease is known")
        return scene.prefill.received[-1].offer

    await turn()
    scene.prefill.decision = Decision.TRANSFER_FAILED
    assert [await turn() is not None for _ in range(FAILURES_TO_EJECT)] == [True] * FAILURES_TO_EJECT
    scene.prefill.decision = Decision.PULLED
    assert await turn() is None
    last = scene.prefill.received[-1].envelope
    assert last is not None
    assert last.reason_without_offer is Decision.TRANSFER_FAILED
    assert scene.metric("pair_quarantines_total") == 1
    clock.now += FIRST_EJECTION_SECONDS
    assert [await turn() is not None for _ in range(2)] == [True, True]


def test_engine_that_came_back_gets_its_share_little_by_little() -> None:
    clock = Clock()
    breaker = Breaker("d0", clock)
    assert breaker.share == 1.0
    breaker.fail(Signal.CONNECT)
    clock.now += FIRST_EJECTION_SECONDS
    breaker.succeed()
    assert breaker.share == LEAST_SHARE
    clock.now += RAMP_SECONDS / 2
    assert breaker.share == 0.5
    clock.now += RAMP_SECONDS
    assert breaker.share == 1.0


def test_cold_turns_avoid_the_engine_that_just_came_back_unless_the_others_are_busy(yard: Yard) -> None:
    breaker = yard.engine("d0").health = Breaker("d0", yard.clock)
    breaker.fail(Signal.CONNECT)
    yard.clock.now += FIRST_EJECTION_SECONDS
    breaker.succeed()
    placement = placed()

    def chosen() -> str:
        engine = yard.chooser.decode(yard.chooser.plan(chat("hi"), placement, MODEL), placement, MODEL)
        assert engine is not None
        return engine.name

    yard.engine("d1").num_active = 5
    assert chosen() == "d1"
    yard.engine("d1").num_active = 50
    assert chosen() == "d0"
    yard.engine("d1").num_active = 5
    yard.clock.now += RAMP_SECONDS
    assert chosen() == "d0"
