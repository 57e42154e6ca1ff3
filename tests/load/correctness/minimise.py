"""Has hypothesis reduce a failing history to the shortest and plainest one that still fails on the same engines."""

import random
import time
from collections.abc import Callable
from typing import Any

import hypothesis
import msgspec
from hypothesis import strategies

from tests.load.correctness.histories import History, Turn

PLAIN_TURN = Turn()
MAX_TRIALS = 60
MAX_SECONDS = 180.0


class OutOfTimeError(Exception):
    """Ends a reduction whose trials take long; the smallest so far is the result."""


def minimise(history: History, fails: Callable[[History], bool]) -> History:
    """The history itself when it does not fail again (a race), else the smallest that hypothesis found to fail."""
    smallest, started = history, time.monotonic()

    def noted(candidate: History) -> bool:
        nonlocal smallest
        if time.monotonic() - started > MAX_SECONDS:
            raise OutOfTimeError
        if not fails(candidate):
            return False
        smallest = min(smallest, candidate, key=lambda one: len(msgspec.json.encode(one)))
        return True

    settings = hypothesis.settings(
        max_examples=MAX_TRIALS,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        return hypothesis.find(parts_of(history), noted, settings=settings, random=random.Random(history.seed))
    except (hypothesis.errors.NoSuchExample, hypothesis.errors.Flaky, OutOfTimeError):
        return smallest


@strategies.composite
def parts_of(draw: strategies.DrawFn, history: History) -> History:
    """The history with turns left out and fields made plain; it is mostly drawn whole, and shrinks to nothing.

    As many draws whatever is left out, so that one can shrink without shifting the others.
    """
    keeps = [draw(_mostly(True)) for _ in history.turns]
    turns = [_plainer(draw, turn) for turn in history.turns]
    return History(seed=history.seed, turns=tuple(turn for turn, kept in zip(turns, keeps, strict=True) if kept))


def _plainer(draw: strategies.DrawFn, turn: Turn) -> Turn:
    changed: dict[str, Any] = {}
    for field in Turn.__struct_fields__:
        own, plain = getattr(turn, field), getattr(PLAIN_TURN, field)
        if own != plain and not draw(_mostly(True)):
            changed[field] = plain
    return msgspec.structs.replace(turn, **changed)


def _mostly(is_kept: bool) -> strategies.SearchStrategy[bool]:
    """Shrinks to the opposite."""
    return strategies.sampled_from([not is_kept, *[is_kept] * 40])
