"""Each field report that the product answers for has tests, found by the table in tests/README.md."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
REPORTS = (
    1,
    3,
    5,
    7,
    9,
    11,
    13,
    15,
    17,
    19,
    21,
    23,
    25,
    27,
    29,
    31,
    33,
    35,
    37,
    39,
    41,
    43,
    45,
    47,
    49,
    51,
    53,
    55,
    57,
    59,
)
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)
MENTION = re.compile(r"[Ff]ield reports? ((?:\d+(?: \([^)]*\))?(?:, | and |,?\s+)?)+)")


def table() -> dict[int, tuple[str, list[str]]]:
    rows = ROW.findall((TESTS / "README.md").read_text())
    return {int(number): (what, re.findall(r"`([^`]+)`", files)) for number, what, files in rows}


def mentioned_in(path: Path) -> set[int]:
    """Numbers of the reports that a test file names; public issues named beside them don't count."""
    text = re.sub(r"\s+", " ", path.read_text())
    return {int(n) for found in MENTION.findall(text) for n in re.findall(r"\d+", re.sub(r"\([^)]*\)", "", found))}


def test_table_lists_exactly_the_reports() -> None:
    assert sorted(table()) == sorted(REPORTS)


@pytest.mark.parametrize("number", REPORTS)
def test_report_names_its_source_and_existing_tests_that_name_it(number: int) -> None:
    what, files = table()[number]
    assert re.search(r"[\w.-]+/[\w.-]+#\d+", what), "the public report is named"
    assert [name for name in files if not (TESTS / name).is_file()] == []
    assert any(number in mentioned_in(TESTS / name) for name in files)
