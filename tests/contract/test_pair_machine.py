"""Random interleavings on the pair: whatever is granted, read, released, late, lost or aborted, no answer is wrong."""

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from connector.protocol import LeaseState, PolicyPatch
from tests.contract.fake_nixl import FakeHandle, NixlDisconnectError
from tests.contract.pair_bench import Engine, Pair, reply_of
from tests.contract.worker_bench import ManualClock

HISTORIES = [list(range(1, 19)), [*range(1, 13), 60, 61, 62, 63, 64], [9, *range(30, 47)]]
MAX_REQUESTS = 8
MAX_TOKENS = 30
NUM_BLOCKS = 18
"""So few that blocks of ended leases soon belong to others."""
MAX_STEPS = 60
FAULTS = ["send_notif", "make_prepped_xfer", "transfer_data", "transfer_fence", "release_xfer_handle"]


class PairMachine(RuleBasedStateMachine):
    """READs of both engines end only when a rule says so; the engines step independently."""

    folder: Path
    clock: ManualClock

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(self.folder, self.clock, num_blocks=NUM_BLOCKS)
        self.engines = (self.pair.prefill, self.pair.decode)
        self.prompts: dict[str, list[int]] = {}
        self.aborted: set[str] = set()
        self.number = 0
        for tokens in HISTORIES[:2]:
            self.pair.turn(self._new(tokens), tokens)
        for engine in self.engines:
            engine.nixls[0].is_prompt = False

    # ------------------------------------------------ requests

    def _num_alive(self) -> int:
        return sum(len(engine.answers) - len(engine.finished) for engine in self.engines) - len(self.aborted)

    def _new(self, tokens: list[int]) -> str:
        self.number += 1
        self.prompts[str(self.number)] = tokens
        return str(self.number)

    def _held(self) -> list[tuple[list[int], str | None]]:
        """Tokens and offer of every lease that D ever granted, the newest first."""
        found: list[tuple[list[int], str | None]] = []
        for lease in reversed(self.pair.decode.leases()):
            turn = lease.lease.turn_id
            tokens = [*self.prompts[turn], *self.pair.decode.answers[f"d-{turn}"]]
            found.append((tokens[: lease.lease.num_tokens], lease.offer))
        return found

    def _own_deadline(self, data: st.DataObject) -> dict[str, Any]:
        seconds = data.draw(st.sampled_from([None, None, 1.0, 60.0]))
        return {} if seconds is None else {"policy": PolicyPatch(kv_pull_deadline=seconds)}

    @precondition(lambda self: self._num_alive() < MAX_REQUESTS)
    @rule(data=st.data(), history=st.sampled_from(HISTORIES), num_more=st.integers(0, 6))
    def ask_prefill(self, data: st.DataObject, history: list[int], num_more: int) -> None:
        """A turn of a conversation, with an offer of D's, of whatever age, or without."""
        tokens, offer = data.draw(st.sampled_from([*self._held()[:3], (history, None)]))
        prompt = [*tokens, *(70 + number for number in range(num_more))][:MAX_TOKENS]
        self.pair.start_prefill(self._new(prompt), prompt, offer, **self._own_deadline(data))

    @precondition(lambda self: self._num_alive() < MAX_REQUESTS)
    @rule(data=st.data(), num_tokens=st.integers(1, 10))
    def ask_decode(self, data: st.DataObject, num_tokens: int) -> None:
        """A decode leg of a prefill that has ended, once or again, or of none."""
        done = [name for name, answer in self.pair.prefill.finished.items() if answer and "backhaul" in answer]
        name = data.draw(st.sampled_from([*done[-3:], None]))
        tokens = self.prompts[name.removeprefix("p-")] if name else data.draw(st.sampled_from(HISTORIES))
        offer = self.pair.offer_of(name) if name else None
        self.pair.start_decode(self._new(tokens), tokens, offer, num_tokens, **self._own_deadline(data))

    @precondition(lambda self: self._num_alive() < MAX_REQUESTS)
    @rule(is_prefill=st.booleans(), num_tokens=st.integers(8, MAX_TOKENS), num_steps=st.integers(0, 3))
    def ask_something_else(self, is_prefill: bool, num_tokens: int, num_steps: int) -> None:
        """Of a stock client; takes blocks and shares none."""
        turn = self._new([10 + (self.number * 7 + position) % 80 for position in range(num_tokens)])
        engine = self.engines[not is_prefill]
        engine.add(f"{'p' if is_prefill else 'd'}-{turn}", self.prompts[turn], None, 2)
        for _ in range(num_steps):
            engine.step()

    def _unfinished(self) -> list[tuple[Engine, str]]:
        return [
            (engine, name)
            for engine in self.engines
            for name in engine.answers
            if name not in engine.finished and name not in self.aborted
        ]

    @precondition(lambda self: self._unfinished())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        engine, name = data.draw(st.sampled_from(self._unfinished()))
        engine.abort(name)
        self.aborted.add(name)

    @precondition(lambda self: any(engine.scheduler.running for engine in self.engines))
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        running = [(e, request.request_id) for e in self.engines for request in e.scheduler.running]
        engine, name = data.draw(st.sampled_from(running))
        engine.preempt(name)

    # ------------------------------------------------ leases, time, steps

    @precondition(lambda self: len(self.pair.decode.core.control.table) > 0)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(list(self.pair.decode.core.control.table)))
        self.pair.decode.core.control.release(lease, LeaseState.RELEASED, "command")

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0, 40.0, 500.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(steps=st.integers(1, 3), is_prefill=st.booleans())
    def step(self, steps: int, is_prefill: bool) -> None:
        for _ in range(steps):
            self.engines[not is_prefill].step()

    @rule(seconds=st.sampled_from([1.0, 5.0, 60.0]), is_prefill=st.booleans(), release_on_read=st.booleans())
    def change_policy(self, seconds: float, is_prefill: bool, release_on_read: bool) -> None:
        self.engines[not is_prefill].set_policy(
            kv_recompute_threshold=1, kv_pull_deadline=seconds, release_on_read=release_on_read
        )

    # ------------------------------------------------ the fabric

    def _open_reads(self) -> list[tuple[Engine, FakeHandle]]:
        return [(engine, read) for engine in self.engines for read in engine.nixls[0].open_reads()]

    @precondition(lambda self: self._open_reads())
    @rule(data=st.data(), how=st.sampled_from(["arrives"] * 6 + ["ERR", "lost"]))
    def end_read(self, data: st.DataObject, how: str) -> None:
        engine, read = data.draw(st.sampled_from(self._open_reads()))
        if how == "arrives":
            engine.nixls[0].finish(read)
        else:
            read.state = "ERR" if how == "ERR" else NixlDisconnectError()

    @precondition(lambda self: self._open_reads())
    @rule(data=st.data())
    def some_bytes_arrive(self, data: st.DataObject) -> None:
        engine, read = data.draw(st.sampled_from(self._open_reads()))
        engine.nixls[0].move(read)

    @rule(fault=st.sampled_from(FAULTS), is_prefill=st.booleans(), is_on=st.booleans())
    def break_or_mend(self, fault: str, is_prefill: bool, is_on: bool) -> None:
        faults = self.engines[not is_prefill].nixls[0].faults
        if is_on:
            faults[fault] = NixlDisconnectError()
        else:
            faults.clear()

    @precondition(lambda self: any(engine.nixls[0].sent for engine in self.engines))
    @rule(data=st.data())
    def repeat_a_notice(self, data: st.DataObject) -> None:
        sent = [(engine, notice) for engine in self.engines for notice in engine.nixls[0].sent[-4:]]
        engine, (agent, message) = data.draw(st.sampled_from(sent))
        self.pair.wire.agents[agent].incoming.append({engine.nixls[0].name: [message]})

    # ------------------------------------------------ what always holds

    @invariant()
    def answers_are_the_truth_so_far(self) -> None:
        for engine in self.engines:
            for name, answer in engine.answers.items():
                assert answer == reply_of(self.prompts[name.split("-")[1]], len(answer))

    @invariant()
    def blocks_are_free_exactly_when_nobody_holds_them(self) -> None:
        for engine in self.engines:
            blocks = [block for block in engine.scheduler.kv_cache_manager.block_pool.blocks if not block.is_null]
            assert min(block.ref_cnt for block in blocks) >= 0
            assert sum(block.ref_cnt == 0 for block in blocks) == engine.num_free_blocks

    @invariant()
    def what_a_read_may_write_to_is_neither_free_nor_cached(self) -> None:
        for engine in self.engines:
            blocks = engine.scheduler.kv_cache_manager.block_pool.blocks
            for read in engine.nixls[0].open_reads():
                into = read.facts["args"][1] if read.operation_of == "data" else []
                assert all(blocks[index].ref_cnt > 0 and blocks[index].block_hash is None for index in into)

    @invariant()
    def no_word_vouches_for_blocks_that_were_freed(self) -> None:
        for engine in self.engines:
            memory = engine.workers[0]._fence_memory
            for request_id, slot in memory._slot_of_request.items():
                if memory.value(slot) and request_id in engine.finished and engine.finished[request_id]:
                    assert request_id in engine.scheduler.requests

    def teardown(self) -> None:
        """Once the fabric is sound again everything ends, exactly once, and nothing is left."""
        try:
            for engine in self.engines:
                engine.nixls[0].faults.clear()
                engine.nixls[0].is_prompt = True
            for _ in range(MAX_STEPS):
                self.pair.step()
                self.clock.now += 5
            assert self._unfinished() == []
            self.pair.expire_all()
            assert self.pair.leftovers() == []
            self.answers_are_the_truth_so_far()
        finally:
            self.pair.close()


def test_no_interleaving_gives_a_wrong_answer_or_leaves_anything(pair_folder: Path, clock: ManualClock) -> None:
    PairMachine.folder, PairMachine.clock = pair_folder, clock
    run_state_machine_as_test(
        PairMachine,
        settings=settings(
            derandomize=True,
            deadline=None,
            max_examples=60,
            stateful_step_count=60,
            suppress_health_check=list(HealthCheck),
        ),
    )
