"""Containment: an exception in a hook of ours must never reach vLLM, where it would kill the engine core."""

import functools
import logging
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

logger = logging.getLogger("vllm.backhaul.guards")

F = TypeVar("F", bound=Callable[..., Any])

MAX_TRACES = 10

num_contained: Counter[str] = Counter()
"""Exceptions contained so far in this process, by hook."""

num_contained_of_workers: dict[int, dict[str, int]] = {}
"""The same of the worker processes, by pid, as they reported last."""


def count(hook: str) -> None:
    """For faults that a hook contains by itself."""
    num_contained[hook] += 1


def contained(fallback: Callable[..., Any]) -> Callable[[F], F]:
    """Decorate a method: on an exception count it, log it with its trace and return ``fallback(self, *args)``."""

    def decorate(hook: F) -> F:
        @functools.wraps(hook)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return hook(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001 - whatever it is; _log writes its trace
                count(hook.__name__)
                _log(hook.__name__, error)
                return fallback(self, *args, **kwargs)

        return guarded  # type: ignore[return-value]  # same signature by construction

    return decorate


def _log(hook: str, error: Exception) -> None:
    """The first few with their trace, later ones now and then: a hook may fail at every step, a thousand a second."""
    times = num_contained[hook]
    if times <= MAX_TRACES or times % 1000 == 0:
        logger.error("Contained an exception in %s (%d so far)", hook, times, exc_info=error)


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """Fallback of hooks that only record."""


def of_this_process() -> dict[int, dict[str, int]]:
    """What a worker reports to its scheduler: totals, so that a lost report loses nothing."""
    return {os.getpid(): dict(num_contained)} if num_contained else {}


def note_workers(counts: dict[int, dict[str, int]]) -> None:
    """A worker that shares the scheduler's process counts in the same place, so it isn't added again."""
    num_contained_of_workers.update({pid: by_hook for pid, by_hook in counts.items() if pid != os.getpid()})


def total() -> int:
    """Exceptions contained in this engine since its start, workers included."""
    return sum(num_contained.values()) + sum(sum(by_hook.values()) for by_hook in num_contained_of_workers.values())
