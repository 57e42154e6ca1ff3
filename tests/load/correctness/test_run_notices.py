"""The run's own checks: exact engines pass, engines that don't verify are caught, and their history is reduced.

Against stand-ins for the engines; on the real ones ``make bench-correctness ARGS='--mutation …'`` does it.
"""

import asyncio

import pytest

from tests.load.correctness.fake_fleet import FakeFleet
from tests.load.correctness.histories import History, Turn, generate
from tests.load.correctness.history_run import HistoryRun
from tests.load.correctness.leg_checks import MismatchError
from tests.load.correctness.minimise import minimise
from tests.load.correctness.tally import Tally


def complaint(history: History, *, verifies: bool) -> MismatchError | None:
    try:
        asyncio.run(HistoryRun(FakeFleet(verifies=verifies), history, Tally()).run())  # type: ignore[arg-type]
    except MismatchError as error:
        return error
    return None


@pytest.mark.parametrize("seed", range(40))
def test_exact_engines_pass(seed: int) -> None:
    assert complaint(generate(seed), verifies=True) is None


def test_engines_that_do_not_verify_are_caught() -> None:
    caught = [error for seed in range(40) if (error := complaint(generate(seed), verifies=False))]
    assert len(caught) > 20
    assert {error.what for error in caught} == {"wrong log-probabilities"}


def test_failing_history_is_reduced_to_what_matters() -> None:
    edit = Turn(change="edit", where=10, seed=7, threshold_tokens=1)
    history = History(
        seed=5,
        turns=(
            Turn(seed=1, num_reply_tokens=8, is_streamed=True),
            Turn(seed=2, change="tool_results", num_fillers=2, is_rechecked=True),
            edit,
            Turn(seed=3, change="append", adapter=1),
        ),
    )
    smallest = minimise(history, lambda candidate: complaint(candidate, verifies=False) is not None)
    assert complaint(smallest, verifies=False) is not None
    assert len(smallest.turns) == 2
    assert smallest.turns[0] == Turn()


def test_history_that_does_not_fail_again_is_left_as_it_is() -> None:
    history = History(seed=3, turns=(Turn(change="edit"),))
    assert minimise(history, lambda _: False) == history
