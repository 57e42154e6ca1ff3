"""Outcomes of one run of pytest, and how two runs differ."""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import msgspec

Outcomes = dict[str, str]
"""``passed``, ``failed`` or ``skipped`` by test, named ``file.py::Class::test[parameters]``."""


def read_outcomes(report: Path) -> Outcomes:
    """From pytest's JUnit report."""
    root = ElementTree.parse(report)  # noqa: S314 - written by our own child
    return {_name_of(case): _outcome_of(case) for case in root.iter("testcase")}


def _name_of(case: ElementTree.Element) -> str:
    parts = case.attrib["classname"].split(".")
    position = next(index for index, part in enumerate(parts) if part.startswith("test_"))
    return "::".join([f"{parts[position]}.py", *parts[position + 1 :], case.attrib["name"]])


def _outcome_of(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return "failed"
    return "skipped" if "skipped" in kinds else "passed"


def count_by_file(outcomes: Outcomes) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for test, outcome in outcomes.items():
        counts.setdefault(test.split("::")[0], Counter())[outcome] += 1
    return counts


def differing(stock: Outcomes, ours: Outcomes) -> set[str]:
    """Tests that end otherwise with our connector, those that only one run knows included."""
    return {test for test in stock.keys() | ours.keys() if stock.get(test) != ours.get(test)}


class Difference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tests that differ for one reason. A name stands for every parametrisation of its test too."""

    reason: str
    tests: tuple[str, ...]

    def covers(self, test: str) -> bool:
        return test in self.tests or test.split("[", maxsplit=1)[0] in self.tests


def read_differences(path: Path) -> list[Difference]:
    known = msgspec.toml.decode(path.read_bytes(), type=dict[str, list[Difference]])
    return known["difference"]


def reason_of(test: str, known: list[Difference]) -> str | None:
    return next((difference.reason for difference in known if difference.covers(test)), None)
