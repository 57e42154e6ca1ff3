"""Chooses the engines of a turn. Pure: looks at engines, changes nothing."""

from collections.abc import Iterable

from connector.router.fleet import Engine


def choose_decode(engines: Iterable[Engine], holder: str) -> Engine | None:
    """The engine that holds the best lease if it takes turns, else the least busy one; absent when there is none."""
    candidates = list(engines)
    for engine in candidates:
        if engine.name == holder and not engine.is_avoided:
            return engine
    return least_busy(candidates)


def least_busy(engines: Iterable[Engine]) -> Engine | None:
    """Fewest turns in flight, then longest not picked, so that idle engines take turns; avoided ones come last."""
    return min(engines, key=_busyness, default=None)


def _busyness(engine: Engine) -> tuple[bool, int, int]:
    return engine.is_avoided, engine.num_active, engine.picked_at
