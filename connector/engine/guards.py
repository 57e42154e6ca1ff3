"""Containment: an exception in a hook of ours must never reach vLLM, where it would kill the engine core."""

import functools
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

logger = logging.getLogger("vllm.backhaul.guards")

F = TypeVar("F", bound=Callable[..., Any])

num_contained: Counter[str] = Counter()
"""Exceptions contained so far, by hook; part of the engine's log and load report."""


def contained(fallback: Callable[..., Any]) -> Callable[[F], F]:
    """Decorate a method: on an exception count it, log it with its trace and return ``fallback(self, *args)``."""

    def decorate(hook: F) -> F:
        @functools.wraps(hook)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return hook(self, *args, **kwargs)
            except Exception:
                num_contained[hook.__name__] += 1
                logger.exception("Contained an exception in %s", hook.__name__)
                return fallback(self, *args, **kwargs)

        return guarded  # type: ignore[return-value]  # same signature by construction

    return decorate


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """Fallback of hooks that only record."""
