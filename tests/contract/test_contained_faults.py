"""An exception in any hook of ours, one at a time: both engines live, answers are the truth, and it is counted."""

from collections.abc import Callable
from typing import Any

import pytest

from connector.engine import guards
from tests.contract.pair_bench import PROMPT, Engine, Pair, reply_of

LONGER = [*PROMPT, *reply_of(PROMPT, 3), 7, 8, 9]

SCHEDULER_SIDE = [
    "matcher.open",
    "matcher.match",
    "matcher.write_back",
    "matcher.digest",
    "fence.raise_word",
    "fence.word_of",
    "fence.compare",
    "fence.drop",
    "fence.lease_ended",
    "fence.fill",
    "transfers.start",
    "transfers.note",
    "transfers.finish",
    "control.pump",
    "control.fill",
    "control.grant",
    "control.note_reads",
    "control.note_expired",
    "control.ended",
    "control.room.make_room",
    "control.room.keep_low_water",
    "quarantine.follow",
    "factory.make",
    "factory.ttl_seconds",
    "cache_reset.pump",
    "cache_reset.learn_queue",
    "demand.arrived",
    "demand.left",
    "reporter.count_arrival",
    "reporter.count_departure",
    "reporter.count_step",
    "reporter.event",
    "idle_wait.wait",
]
WORKER_SIDE = [
    "_fence_memory.raise_word",
    "_fence_memory.drop_word",
    "_fence_memory.take_landing",
    "_agent.notices._is_for_vllm",
    "_agent.notices.take_reads",
    "_agent._agent.get_new_notifs",
    "_agent.poll_stray_fences",
    "_pulls.deadlines.start",
    "_pulls.deadlines.passed",
    "_pulls.deadlines.end",
    "_pulls.late.poll",
    "_pulls.is_wanted",
    "_leases._release",
]


def explode(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("a fault of ours")


def placed(root: Any, path: str) -> tuple[Any, str]:
    *way, name = path.split(".")
    for step in way:
        root = getattr(root, step)
    assert callable(getattr(root, name)), f"no such hook: {path}"
    return root, name


def broken(pair: Pair, monkeypatch: pytest.MonkeyPatch, side: str, path: str) -> None:
    for engine in (pair.prefill, pair.decode):
        for root in (engine.core,) if side == "scheduler" else engine.workers:
            monkeypatch.setattr(*placed(root, path), explode)


def talk(pair: Pair, name: str) -> None:
    """Two turns of a conversation, with what offers there are; a client that leaves in each leg; a filled cache."""
    offer = None
    for number, tokens in enumerate((PROMPT, LONGER)):
        turn = f"{name}-{number}"
        pair.start_prefill(turn, tokens, offer)
        pair.prefill.run(f"p-{turn}")
        answer = pair.prefill.finished[f"p-{turn}"] or {}
        decode_offer = (answer.get("backhaul") or {}).get("offer")
        pair.start_decode(turn, tokens, decode_offer)
        pair.start_decode(f"{turn}-left", tokens, decode_offer)
        pair.decode.abort(f"d-{turn}-left")
        pair.decode.run(f"d-{turn}")
        assert pair.decode.answers[f"d-{turn}"] == reply_of(tokens, 3)
        pair.settle()
        offer = pair.decode.leases()[-1].offer if pair.decode.leases() else None
    pair.start_prefill(f"{name}-left", [*LONGER, 3, 4], offer)
    pair.prefill.step()
    pair.prefill.abort(f"p-{name}-left")
    pair.settle()


def fill(engine: Engine, name: str) -> None:
    """Uses every block that is free."""
    prompt = [20 + number % 50 for number in range(engine.num_free_blocks * 4 - 8)]
    engine.add(name, prompt, None, 2)
    engine.run(name)
    assert engine.answers[name] == reply_of(prompt, 2)


EACH = [("scheduler", path) for path in SCHEDULER_SIDE] + [("worker", path) for path in WORKER_SIDE]


@pytest.mark.parametrize(("side", "path"), EACH, ids=[f"{side}:{path}" for side, path in EACH])
def test_no_fault_kills_an_engine_or_changes_an_answer(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, side: str, path: str
) -> None:
    with monkeypatch.context() as faults:
        broken(pair, faults, side, path)
        talk(pair, "broken")
        for engine in (pair.prefill, pair.decode):
            fill(engine, "filler")
    is_called = bool(guards.num_contained)
    assert is_called or path in NOT_CALLED_HERE
    talk(pair, "mended")
    pair.expire_all()
    held = [left for left in pair.leftovers() if "blocks" in left or "requests" in left]
    assert held == []


NOT_CALLED_HERE = ("idle_wait.wait", "_leases._release", "control.note_expired")
"""Needs idleness or an order that no turn gives; broken all the same."""


# ---------------------------------------------------------------- what must be safe, not only alive


def test_words_that_can_not_be_dropped_one_by_one_fall_together(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else blocks would be freed under a word that still vouches for them."""
    offer = pair.turn("one", PROMPT)
    with monkeypatch.context() as faults:
        broken(pair, faults, "worker", "_fence_memory.drop_word")
        pair.clock.now += 1000
        pair.settle()
    assert not pair.decode.workers[0]._fence_memory.num_words
    pair.start_prefill("two", LONGER, offer)
    pair.prefill.run("p-two")
    assert pair.prefill.transfers() in ([("fenced", "lease_ended")], [("fenced", "expired_before_read")])


def test_blocks_that_can_not_be_held_are_not_freed_under_a_late_read(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM keeps them for the request itself, which goes on once the READ has ended."""
    offer = pair.prefilled("now", PROMPT)
    nixl = pair.decode.nixls[0]
    nixl.is_prompt = False
    pair.start_decode("now", PROMPT, offer)
    pair.decode.step()
    pool = pair.decode.core.quarantine._cache_manager.block_pool
    with monkeypatch.context() as faults:
        faults.setattr(pool, "touch", explode)
        pair.clock.now += 6
        pair.decode.settle()
    assert "d-now" not in pair.decode.finished
    assert pair.decode.core.has_pending_push_work()
    nixl.is_prompt = True
    pair.decode.run("d-now")
    assert pair.decode.answers["d-now"] == reply_of(PROMPT, 3)
    pair.expire_all()
    assert pair.leftovers() == []


@pytest.mark.parametrize("stage", ["matcher.open", "matcher.match"])
def test_the_source_hears_of_a_fault_in_matching(pair: Pair, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    offer = pair.prefilled("now", PROMPT)
    monkeypatch.setattr(*placed(pair.decode.core, stage), explode)
    pair.start_decode("now", PROMPT, offer)
    pair.decode.run("d-now")
    pair.settle()
    assert pair.prefill.scheduler.requests == {}
    assert pair.decode.answers["d-now"] == reply_of(PROMPT, 3)


def test_decode_hears_of_a_fault_in_prefills_matching(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = pair.turn("one", PROMPT)
    monkeypatch.setattr(*placed(pair.prefill.core, "matcher.match"), explode)
    pair.start_prefill("two", LONGER, offer)
    pair.prefill.run("p-two")
    before = len(pair.decode.nixls[0].incoming)
    assert before > 0
    assert any(b":1" in message for batch in pair.decode.nixls[0].incoming for message in batch["prefill-0"])


def test_what_workers_contain_is_told_to_the_scheduler(pair: Pair) -> None:
    report_of_worker: Callable[[], Any] = pair.prefill.workers[0].take_report
    guards.count("a_hook")
    report = report_of_worker()
    assert list(report.contained.values()) == [{"a_hook": 1}]
    assert report_of_worker() is None
    guards.note_workers({1: {"a_hook": 3}, 2: {"another": 1}})
    assert guards.total() == 5


def test_an_engines_load_says_what_was_contained(pair: Pair) -> None:
    guards.count("a_hook")
    guards.note_workers({1: {"a_hook": 3}})
    assert pair.prefill.core.reporter._load(0).num_contained == 4
