"""Counters, gauges and histograms in Prometheus' text format (0.0.4), for one event loop.

No locks and no dependency: the router's environment is pinned without a metrics library, and an increment is on every
turn's path. Labels are given by position; their values must come from a bounded set.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Value:
    """One series of a counter or gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def dec(self, amount: float = 1) -> None:
        self.value -= amount

    def set(self, value: float) -> None:
        self.value = value


class Family:
    """A counter or gauge with its series; without labels it has one."""

    def __init__(self, kind: str, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.kind, self.name, self.text, self._labels = kind, name, text, tuple(labels)
        self._series: dict[tuple[str, ...], Value] = {} if labels else {(): Value()}

    def labels(self, *values: str) -> Value:
        series = self._series.get(values)
        if series is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self.name} has {len(self._labels)} labels")
            series = self._series[values] = Value()
        return series

    @property
    def only(self) -> Value:
        """The series of a family without labels."""
        return self._series[()]

    def clear(self) -> None:
        self._series.clear()

    def render(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.text}"
        yield f"# TYPE {self.name} {self.kind}"
        for values, series in self._series.items():
            yield f"{self.name}{_braces(self._labels, values)} {_number(series.value)}"


class Histogram:
    """Observations over fixed upper bounds."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text, self._bounds = name, text, tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def render(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.text}"
        yield f"# TYPE {self.name} histogram"
        total = 0
        for bound, count in zip((*map(_number, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{self.name}_bucket{{le="{bound}"}} {total}'
        yield f"{self.name}_sum {_number(self._sum)}"
        yield f"{self.name}_count {total}"


def _braces(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
