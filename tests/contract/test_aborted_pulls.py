"""Clients that leave, requests that are preempted, ranks that differ: blocks are freed once and nothing is left."""

import pytest

from tests.contract.fake_nixl import NixlDisconnectError
from tests.contract.pair_bench import PROMPT, Pair, reply_of
from tests.contract.reading import Reading
from tests.contract.test_late_pulls import Handshake


@pytest.fixture(params=["P->D", "D->P"])
def reading(request: pytest.FixtureRequest, pair: Pair) -> Reading:
    return Reading(pair, to_prefill=request.param == "D->P")


def leave(reading: Reading) -> None:
    reading.reader.abort(reading.request_id)


# ---------------------------------------------------------------- a client leaves


def test_before_anything_was_scheduled(reading: Reading) -> None:
    reading.start()
    leave(reading)
    reading.reader.settle()
    assert reading.num_posted() == 0
    reading.leaves_nothing()


def test_prefill_is_told_of_a_decode_leg_that_was_never_scheduled(pair: Pair) -> None:
    reading = Reading(pair, to_prefill=False)
    reading.start()
    leave(reading)
    pair.settle()
    assert pair.prefill.scheduler.requests == {}
    reading.leaves_nothing()


@pytest.mark.parametrize("end", [Handshake.succeed, Handshake.fail])
def test_during_the_handshake(reading: Reading, end: object) -> None:
    handshake = Handshake(reading)
    reading.start()
    reading.reader.step()
    leave(reading)
    reading.reader.step()
    end(handshake)  # type: ignore[operator]  # one of the two above
    reading.nixl.is_prompt = True
    reading.reader.settle()
    reading.leaves_nothing()


def test_during_the_handshake_that_never_ends(reading: Reading) -> None:
    handshake = Handshake(reading)
    reading.start()
    reading.reader.step()
    leave(reading)
    reading.be_late()
    reading.reader.settle()
    assert reading.reader.num_free_blocks == reading.num_free
    handshake.fail()
    reading.leaves_nothing()


@pytest.mark.parametrize("state", ["DONE", "ERR", NixlDisconnectError()])
def test_during_the_read(reading: Reading, state: str | Exception) -> None:
    """Its blocks are written to until the READ has ended, so they are kept that long and no longer."""
    read = reading.post()
    leave(reading)
    for _ in range(5):
        reading.reader.step()
    assert reading.reader.num_free_blocks < reading.num_free
    read.state = state
    reading.nixl.is_prompt = True
    reading.reader.settle()
    assert reading.reader.num_free_blocks == reading.num_free
    reading.leaves_nothing()


def test_during_the_fence(reading: Reading) -> None:
    reading.fence_posted()
    leave(reading)
    reading.nixl.is_prompt = True
    reading.reader.settle()
    assert reading.reader.num_free_blocks == reading.num_free
    reading.leaves_nothing()


def test_during_a_read_that_is_late_afterwards(reading: Reading) -> None:
    read = reading.post()
    leave(reading)
    reading.be_late()
    reading.reader.settle()
    assert reading.reader.core.quarantine.num_blocks > 0
    read.state = "DONE"
    reading.reader.settle()
    assert reading.reader.num_free_blocks == reading.num_free
    reading.leaves_nothing()


def test_while_its_late_read_is_quarantined(pair: Pair) -> None:
    reading = Reading(pair, to_prefill=False)
    reading.start(num_tokens=30)
    reading.reader.step()
    reading.be_late()
    for _ in range(3):
        reading.reader.step()
    assert reading.request_id not in reading.reader.finished
    leave(reading)
    reading.reader.settle()
    assert reading.reader.num_free_blocks == reading.num_free - reading.reader.core.quarantine.num_blocks
    reading.read().state = "DONE"
    reading.reader.settle()
    assert reading.reader.num_free_blocks == reading.num_free
    reading.leaves_nothing()


def test_between_the_end_of_the_pull_and_the_next_step(reading: Reading) -> None:
    reading.post()
    reading.nixl.is_prompt = True
    while reading.nixl.open_reads():
        reading.reader.step()
    leave(reading)
    reading.reader.settle()
    reading.leaves_nothing()


def test_after_its_blocks_were_leased(reading: Reading) -> None:
    reading.nixl.is_prompt = True
    reading.start()
    reading.finish()
    leave(reading)
    leave(reading)
    reading.leaves_nothing()


# ---------------------------------------------------------------- preemption


def test_a_prefill_that_is_preempted_after_its_pull_recomputes(pair: Pair) -> None:
    reading = Reading(pair, to_prefill=True)
    reading.tokens = [*reading.tokens, *(number % 60 + 20 for number in range(200))]  # two steps of prefill
    reading.num_free = pair.prefill.num_free_blocks
    reading.start()
    reading.nixl.is_prompt = True
    pair.prefill.scheduler.max_num_scheduled_tokens = 64
    while not pair.prefill.scheduler.running:
        pair.prefill.step()
    pair.prefill.preempt(reading.request_id)
    reading.ends_as("completed", "")
    assert reading.num_posted() == 1


def test_a_decode_that_is_preempted_after_its_pull_recomputes(pair: Pair) -> None:
    reading = Reading(pair, to_prefill=False)
    reading.nixl.is_prompt = True
    reading.start(num_tokens=12)
    while len(reading.reader.answers[reading.request_id]) < 4:
        reading.reader.step()
    reading.reader.preempt(reading.request_id)
    reading.ends_as("completed", "")
    assert reading.num_posted() == 1


# ---------------------------------------------------------------- two ranks


@pytest.fixture(params=["P->D", "D->P"])
def two_ranks(request: pytest.FixtureRequest, pair_of_two_ranks: Pair) -> Reading:
    return Reading(pair_of_two_ranks, to_prefill=request.param == "D->P")


def test_a_pull_is_done_when_both_ranks_are(two_ranks: Reading) -> None:
    two_ranks.post()
    two_ranks.reader.nixls[0].is_prompt = True
    two_ranks.reader.settle()
    assert two_ranks.request_id not in two_ranks.reader.finished
    two_ranks.reader.nixls[1].is_prompt = True
    two_ranks.ends_as("completed", "")


def test_one_rank_that_fails_fails_the_pull(two_ranks: Reading) -> None:
    two_ranks.post()
    two_ranks.read(rank=1).state = "ERR"
    two_ranks.reader.settle()
    assert two_ranks.request_id not in two_ranks.reader.finished  # the other rank still writes
    two_ranks.reader.nixls[0].is_prompt = True
    two_ranks.ends_as("failed", "read_failed")


def test_one_rank_whose_lease_is_gone_fences_the_pull(two_ranks: Reading) -> None:
    two_ranks.post()
    two_ranks.source.workers[1]._fence_memory.drop_all_words()
    for nixl in two_ranks.reader.nixls:
        nixl.is_prompt = True
    two_ranks.ends_as("fenced", "lease_ended")


@pytest.mark.parametrize("other", ["DONE", "ERR"])
def test_one_late_rank_keeps_the_blocks_of_all(two_ranks: Reading, other: str) -> None:
    two_ranks.post()
    if other == "DONE":
        two_ranks.reader.nixls[0].is_prompt = True
    else:
        two_ranks.read(rank=0).state = other
    two_ranks.reader.settle()
    two_ranks.be_late()
    two_ranks.finish()
    assert two_ranks.transfers() == [("timeout", "deadline")]
    assert two_ranks.reader.core.quarantine.num_blocks > 0
    two_ranks.read(rank=1).state = "DONE"
    two_ranks.leaves_nothing()


def test_ranks_that_are_both_late_and_end_apart(two_ranks: Reading) -> None:
    two_ranks.post()
    two_ranks.be_late()
    two_ranks.finish()
    held = two_ranks.reader.core.quarantine.num_blocks
    two_ranks.read(rank=0).state = "DONE"
    two_ranks.reader.settle()
    assert two_ranks.reader.core.quarantine.num_blocks == held > 0
    two_ranks.read(rank=1).state = NixlDisconnectError()
    two_ranks.leaves_nothing()


def test_one_late_rank_of_a_client_that_left(two_ranks: Reading) -> None:
    two_ranks.post()
    leave(two_ranks)
    two_ranks.reader.nixls[0].is_prompt = True
    two_ranks.reader.settle()
    two_ranks.be_late()
    two_ranks.reader.settle()
    assert two_ranks.reader.core.quarantine.num_blocks > 0
    two_ranks.read(rank=1).state = "DONE"
    two_ranks.reader.settle()
    assert two_ranks.reader.num_free_blocks == two_ranks.num_free
    two_ranks.leaves_nothing()


def test_prompts_share_what_is_cached_and_nothing_else(pair: Pair) -> None:
    """A second request of the same prefix while the first one's pull is under way finds none of its blocks."""
    reading = Reading(pair, to_prefill=False)
    reading.post()
    pair.decode.add("twin", PROMPT, None, 3)
    pair.decode.run("twin")
    assert pair.decode.answers["twin"] == reply_of(PROMPT, 3)
    reading.nixl.is_prompt = True
    reading.ends_as("completed", "")
