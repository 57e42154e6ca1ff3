"""An exception in a hook is counted, logged and answered by the fallback; it never reaches vLLM."""

import logging

import pytest

from connector.engine import guards


class Hooks:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def _recompute(self, request: str, num_tokens: int) -> tuple[int, bool]:
        self.seen.append((request, num_tokens))
        return 0, False

    @guards.contained(_recompute)
    def match(self, request: str, num_tokens: int) -> tuple[int, bool]:
        if request == "broken":
            raise KeyError(request)
        return num_tokens, True

    @guards.contained(guards.nothing)
    def record(self, request: str) -> str:
        raise RuntimeError(request)

    @guards.contained(guards.nothing)
    def stop(self) -> None:
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _clean_counter() -> None:
    guards.num_contained.clear()


def test_a_hook_that_works_is_untouched() -> None:
    hooks = Hooks()
    assert hooks.match("fine", 7) == (7, True)
    assert (hooks.seen, guards.num_contained.total()) == ([], 0)


def test_an_exception_is_answered_by_the_fallback_with_the_same_arguments() -> None:
    hooks = Hooks()
    assert hooks.match("broken", 7) == hooks.match("broken", num_tokens=8) == (0, False)
    assert hooks.seen == [("broken", 7), ("broken", 8)]


def test_it_is_counted_by_hook_and_logged_with_its_trace(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks()
    with caplog.at_level(logging.ERROR):
        hooks.match("broken", 7)
        hooks.record("r")
    assert guards.num_contained == {"match": 1, "record": 1}
    assert [record.exc_info is not None for record in caplog.records] == [True, True]


def test_a_recording_hook_answers_nothing() -> None:
    assert Hooks().record("r") is None


def test_a_stop_of_the_process_is_not_contained() -> None:
    with pytest.raises(KeyboardInterrupt):
        Hooks().stop()


def test_a_guarded_hook_keeps_its_name() -> None:
    assert Hooks.match.__name__ == "match"
