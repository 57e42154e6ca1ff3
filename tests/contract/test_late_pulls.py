"""Deadlines on a pair: each pull has its own, handshake included; what a late READ may write to is used by nobody."""

from typing import Any

import pytest

from connector.protocol import PolicyPatch
from tests.contract.fake_nixl import NixlDisconnectError
from tests.contract.pair_bench import Pair, reply_of
from tests.contract.reading import Reading


@pytest.fixture(params=["P->D", "D->P"])
def reading(request: pytest.FixtureRequest, pair: Pair) -> Reading:
    return Reading(pair, to_prefill=request.param == "D->P")


def end_of(reading: Reading, how: str) -> None:
    read = reading.read()
    if how == "arrives":
        reading.nixl.move(read)
        read.state = "DONE"
    else:
        read.state = NixlDisconnectError() if how == "source dies" else "ERR"


@pytest.mark.parametrize("how", ["arrives", "source dies", "error"])
def test_a_late_pull_is_recomputed_and_its_blocks_come_back_with_its_end(reading: Reading, how: str) -> None:
    reading.post()
    reading.be_late()
    reading.finish()
    assert reading.transfers() == [("timeout", "deadline")]
    held = reading.reader.core.quarantine.num_blocks
    assert held > 0
    assert reading.reader.scheduler.has_requests()  # so that the core goes on stepping
    end_of(reading, how)
    reading.pair.settle()
    assert (reading.reader.core.quarantine.num_blocks, len(reading.worker._pulls.late)) == (0, 0)
    reading.leaves_nothing()


def test_bytes_that_arrive_late_meet_no_other_request(reading: Reading) -> None:
    """The pool is used up to its last block, every block is written, and then the READ's bytes come."""
    reading.post()
    reading.be_late()
    reading.finish()
    num_tokens = reading.reader.num_free_blocks * 4 - 8
    prompt = [50 + number % 40 for number in range(num_tokens)]
    reading.reader.add("filler", prompt, None, 4)
    reading.reader.step()
    reading.nixl.move(reading.read())
    reading.reader.run("filler")
    assert reading.reader.answers["filler"] == reply_of(prompt, 4)
    reading.read().state = "DONE"
    reading.leaves_nothing()


def test_a_fence_that_never_answers_holds_a_turn_for_its_deadline_only(reading: Reading) -> None:
    fence = reading.fence_posted()
    reading.be_late()
    reading.finish()
    assert (reading.transfers(), reading.reader.core.quarantine.num_blocks) == ([("timeout", "fence_deadline")], 0)
    assert len(reading.worker._agent.stray_fences) == 1
    fence.state = "DONE"
    reading.leaves_nothing()


def deadline(seconds: float) -> Any:
    return {"policy": PolicyPatch(kv_pull_deadline=seconds)}


def test_a_tenants_deadline_travels_with_its_request(reading: Reading) -> None:
    reading.post(**deadline(2.0))
    reading.be_late(2.1)
    reading.finish()
    assert reading.transfers() == [("timeout", "deadline")]
    end_of(reading, "arrives")
    reading.leaves_nothing()


def test_a_live_change_reaches_pulls_under_way_but_not_those_with_their_own(reading: Reading) -> None:
    reading.post(**deadline(60.0))
    reading.reader.set_policy(kv_recompute_threshold=1, kv_pull_deadline=1.0)
    reading.be_late(30.0)
    assert reading.request_id not in reading.reader.finished
    reading.nixl.is_prompt = True
    reading.ends_as("completed", "")


def test_a_live_change_shortens_a_pull_under_way(reading: Reading) -> None:
    reading.post()
    reading.reader.set_policy(kv_recompute_threshold=1, kv_pull_deadline=1.0)
    reading.be_late(1.1)
    reading.finish()
    assert reading.transfers() == [("timeout", "deadline")]
    end_of(reading, "arrives")
    reading.leaves_nothing()


# ---------------------------------------------------------------- handshakes


class Handshake:
    """vLLM's background handshake with the source, under way until a test ends it."""

    def __init__(self, reading: Reading) -> None:
        self._worker = reading.worker
        self._peer, self._agents = self._worker._remote_agents.popitem()
        self.waiting: list[Any] = []
        self._worker._background_nixl_handshake = lambda req_id, _peer, meta: self.waiting.append((req_id, meta))
        # A heartbeat would start one too, and finds it under way.
        self._worker._ensure_handshake = lambda *_: None if self._worker._remote_agents else object()

    def succeed(self) -> None:
        self._worker._remote_agents[self._peer] = self._agents
        while self.waiting:
            self._worker._ready_requests.put(self.waiting.pop())

    def fail(self) -> None:
        self._worker._remote_agents[self._peer] = self._agents  # the next one will succeed
        while self.waiting:
            self._worker._failed_recv_reqs.put(self.waiting.pop()[0])


@pytest.fixture
def handshake(reading: Reading) -> Handshake:
    handshake = Handshake(reading)
    reading.start()
    reading.reader.step()
    assert len(handshake.waiting) == 1
    return handshake


def test_a_handshake_in_time_is_followed_by_the_read(reading: Reading, handshake: Handshake) -> None:
    handshake.succeed()
    reading.nixl.is_prompt = True
    reading.ends_as("completed", "")


def test_a_failed_handshake_recomputes(reading: Reading, handshake: Handshake) -> None:
    handshake.fail()
    reading.ends_as("failed", "handshake_failed")


def test_a_handshake_that_never_ends_holds_no_turn(reading: Reading, handshake: Handshake) -> None:
    reading.be_late()
    reading.finish()
    assert reading.transfers() == [("timeout", "handshake_deadline")]
    handshake.succeed()
    reading.leaves_nothing()
    assert reading.num_posted() == 0


@pytest.mark.parametrize("end", [Handshake.succeed, Handshake.fail])
def test_a_handshake_that_ends_late_posts_no_read(reading: Reading, handshake: Handshake, end: Any) -> None:
    reading.be_late()
    end(handshake)
    reading.ends_as("timeout", "handshake_deadline")
    assert reading.num_posted() == 0


def test_a_late_handshake_lets_prefill_free_its_blocks_at_once(pair: Pair) -> None:
    reading = Reading(pair, to_prefill=False)
    handshake = Handshake(reading)
    reading.start()
    reading.reader.step()
    reading.be_late()
    reading.finish()
    handshake.succeed()
    pair.settle()
    assert pair.prefill.scheduler.requests == {}
    reading.leaves_nothing()


# ---------------------------------------------------------------- what holds for the peer meanwhile


def test_a_peer_stays_connected_while_a_late_read_of_it_goes_on(pair: Pair) -> None:
    """Its address serves another engine now; vLLM would drop it once it sees no pull of it."""
    reading = Reading(pair, to_prefill=True)
    dropped: list[str] = []
    worker: Any = reading.worker
    worker._cleanup_remote_engine = lambda engine_id, **_: dropped.append(engine_id)
    reading.post()
    reading.be_late()
    reading.finish()
    worker._engine_by_address[("127.0.0.1", 5600)] = "d-new-boot"
    pair.settle()
    assert dropped == []
    assert worker._engines_with_inflight_transfers() == {"d-boot"}
    end_of(reading, "error")
    reading.reader.step()
    assert set(dropped) == {"d-boot"}
    assert worker._engines_with_inflight_transfers() == set()
    assert worker._recving_metadata == {}


def test_the_same_prompt_is_never_read_twice_for_one_request(pair: Pair) -> None:
    """After a failed pull vLLM asks again; stock vLLM then parks the request for ever."""
    reading = Reading(pair, to_prefill=True)
    reading.post().state = "ERR"
    reading.finish()
    assert reading.num_posted() == 1
    reading.leaves_nothing()
