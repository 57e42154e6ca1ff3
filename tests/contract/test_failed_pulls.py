"""A pull that breaks off anywhere: the turn is exact, the reason is its own, and nothing is left on either engine."""

from collections.abc import Callable

import pytest

from tests.contract.fake_nixl import NixlDisconnectError
from tests.contract.pair_bench import PROMPT, Pair
from tests.contract.reading import Reading


@pytest.fixture(params=["P->D", "D->P"])
def reading(request: pytest.FixtureRequest, pair: Pair) -> Reading:
    return Reading(pair, to_prefill=request.param == "D->P")


Break = Callable[[Reading], object]


def not_prepared(reading: Reading) -> None:
    reading.nixl.faults["make_prepped_xfer"] = RuntimeError("no descriptors")
    reading.start()


def not_posted(reading: Reading) -> None:
    reading.nixl.faults["transfer_data"] = RuntimeError("no route")
    reading.start()


def read_ends_in_error(reading: Reading) -> None:
    reading.post().state = "ERR"


def source_dies(reading: Reading) -> None:
    reading.post().state = NixlDisconnectError()


def fence_not_prepared(reading: Reading) -> None:
    reading.nixl.faults["initialize_xfer"] = RuntimeError("no route")
    reading.nixl.finish(reading.post())


def fence_not_posted(reading: Reading) -> None:
    reading.nixl.faults["transfer_fence"] = NixlDisconnectError()
    reading.nixl.finish(reading.post())


def fence_ends_in_error(reading: Reading) -> None:
    reading.fence_posted().state = "ERR"


def source_dies_before_the_proof(reading: Reading) -> None:
    reading.fence_posted().state = NixlDisconnectError()


def lease_ends_during_the_read(reading: Reading) -> None:
    reading.post()
    reading.source.workers[0]._fence_memory.drop_all_words()
    reading.nixl.is_prompt = True


def no_landing_is_free(reading: Reading) -> None:
    memory = reading.worker._fence_memory
    taken = []
    while (landing := memory.take_landing()) is not None:
        taken.append(landing)
    reading.nixl.finish(reading.post())
    reading.reader.step()
    for landing in taken:
        memory.return_landing(landing)


@pytest.mark.parametrize(
    ("break_off", "outcome", "reason"),
    [
        (not_prepared, "failed", "prepare_failed"),
        (not_posted, "failed", "post_failed"),
        (read_ends_in_error, "failed", "read_failed"),
        (source_dies, "failed", "source_disconnected"),
        (fence_not_prepared, "failed", "fence_not_posted"),
        (fence_not_posted, "failed", "fence_not_posted"),
        (fence_ends_in_error, "failed", "fence_failed"),
        (source_dies_before_the_proof, "failed", "fence_failed"),
        (lease_ends_during_the_read, "fenced", "lease_ended"),
        (no_landing_is_free, "failed", "no_landing_word"),
    ],
)
def test_a_broken_pull_is_recomputed(reading: Reading, break_off: Break, outcome: str, reason: str) -> None:
    break_off(reading)
    reading.ends_as(outcome, reason)


def test_a_handle_that_can_not_be_released_at_first_is_no_completed_pull(reading: Reading) -> None:
    reading.post()
    reading.nixl.is_prompt = True
    reading.nixl.faults["release_xfer_handle"] = RuntimeError("still in use")
    for _ in range(4):
        reading.reader.step()
    assert reading.request_id not in reading.reader.finished
    reading.nixl.faults.clear()
    reading.ends_as("failed", "release_failed")


def test_a_handle_that_can_never_be_released_keeps_its_blocks_and_not_its_turn(reading: Reading) -> None:
    reading.post()
    reading.nixl.is_prompt = True
    reading.nixl.faults["release_xfer_handle"] = RuntimeError("still in use")
    reading.reader.step()
    reading.be_late()
    reading.finish()
    assert reading.transfers() == [("failed", "release_failed")]
    assert reading.reader.core.quarantine.num_blocks > 0
    reading.leaves_nothing()


def test_missing_telemetry_fails_nothing(reading: Reading) -> None:
    reading.nixl.faults["get_xfer_telemetry"] = RuntimeError("no telemetry")
    reading.nixl.is_prompt = True
    reading.start()
    reading.ends_as("completed", "")


def test_a_lost_notice_fails_nothing_and_the_source_frees_by_expiry(reading: Reading) -> None:
    reading.nixl.faults["send_notif"] = RuntimeError("lost")
    reading.nixl.is_prompt = True
    reading.start()
    reading.finish()
    assert reading.transfers() == [("completed", "")]
    reading.pair.settle()
    assert len(reading.source.scheduler.requests) == 1
    reading.leaves_nothing()


@pytest.mark.parametrize("message", [b"{id}:1", b"nobody:1", b"garbage", b"{id}:x"])
def test_stray_and_repeated_notices_do_no_harm(reading: Reading, message: bytes) -> None:
    """To a request that runs, that is leased, and that is gone."""
    named = message.replace(b"{id}", reading.request_id.encode())
    for nixl in (reading.nixl, reading.source.nixls[0]):
        nixl.incoming += [{"anyone": [named, named]}] * 2
    reading.post()
    reading.nixl.is_prompt = True
    reading.nixl.incoming.append({"anyone": [named, named]})
    reading.ends_as("completed", "")


def test_a_vanished_peer_fails_the_read_and_the_next_turn_recomputes(reading: Reading) -> None:
    reading.post()
    name = reading.source.nixls[0].name
    reading.pair.wire.lose(name)
    reading.nixl.is_prompt = True
    reading.finish()
    assert reading.transfers() == [("failed", "source_disconnected")]
    reading.pair.wire.agents[name] = reading.source.nixls[0]  # so that the bench may end its leases
    reading.leaves_nothing()


def test_a_failed_pull_costs_no_lease(pair: Pair) -> None:
    """Its request asks for blocks a second time, and there are plenty."""
    pair.turn("before", PROMPT)
    reading = Reading(pair, to_prefill=False)
    reading.post().state = "ERR"
    reading.finish()
    pair.settle()
    assert pair.decode.endings() == []
