"""What counts as a difference between two runs, and when it is excused."""

from pathlib import Path

import pytest

from tests.vllm_suite.preparation import HERE
from tests.vllm_suite.results import Difference, count_by_file, differing, read_differences, read_outcomes, reason_of

REPORT = """<testsuites><testsuite>
<testcase classname="tests.v1.unit.test_a" name="test_one" />
<testcase classname="tests.v1.unit.test_a.TestB" name="test_two[x-1]"><failure message="no" /></testcase>
<testcase classname="tests.v1.unit.test_c" name="test_three"><skipped message="later" /></testcase>
<testcase classname="tests.v1.unit.test_c" name="test_four"><error message="fixture" /></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    return path


def test_outcomes_are_named_by_file_class_and_parameters(report: Path) -> None:
    outcomes = read_outcomes(report)
    assert outcomes == {
        "test_a.py::test_one": "passed",
        "test_a.py::TestB::test_two[x-1]": "failed",
        "test_c.py::test_three": "skipped",
        "test_c.py::test_four": "failed",
    }
    assert count_by_file(outcomes)["test_a.py"] == {"passed": 1, "failed": 1}


def test_a_test_that_only_one_run_knows_differs() -> None:
    assert differing({"a": "passed", "b": "failed"}, {"a": "passed", "c": "passed"}) == {"b", "c"}
    assert differing({"a": "passed"}, {"a": "skipped"}) == {"a"}
    assert differing({"a": "failed"}, {"a": "failed"}) == set()


@pytest.mark.parametrize(
    ("listed", "is_excused"),
    [
        ("f.py::test[a-1]", True),
        ("f.py::test", True),
        ("f.py::test[a-2]", False),
        ("f.py::tes", False),
        ("test[a-1]", False),
    ],
)
def test_a_difference_is_excused_by_its_name_or_its_tests(listed: str, is_excused: bool) -> None:
    known = [Difference(reason="by contract", tests=(listed,))]
    assert reason_of("f.py::test[a-1]", known) == ("by contract" if is_excused else None)


def test_every_listed_difference_has_a_reason_and_is_listed_once() -> None:
    known = read_differences(HERE / "known_differences.toml")
    listed = [test for difference in known for test in difference.tests]
    assert len(listed) == len(set(listed))
    assert all(difference.reason.strip() and difference.tests for difference in known)
