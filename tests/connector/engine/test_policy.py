"""The live policy: replaced at once, read back from where hooks read it, and each change is seen once."""

import pytest

from connector.engine.policy import LivePolicy, for_request
from connector.protocol import PolicyPatch, PolicyValues

OLD = PolicyValues()
NEW = PolicyValues(kv_recompute_threshold=128, decoder_kv_blocks_ttl=60)


def test_an_engine_starts_with_its_own_values_as_revision_zero() -> None:
    policy = LivePolicy(NEW)
    assert (policy.revision, policy.values) == (0, NEW)
    assert policy.take_change() is None


def test_a_set_holds_for_the_next_reader_and_is_read_back() -> None:
    policy = LivePolicy(OLD)
    applied = policy.set(3, NEW)
    assert (applied.revision, applied.values, applied.unsupported_fields) == (3, NEW, ())
    assert (policy.revision, policy.values) == (3, NEW)
    assert policy.applied() == applied


def test_a_reader_keeps_its_snapshot() -> None:
    policy = LivePolicy(OLD)
    snapshot = policy.values
    policy.set(1, NEW)
    assert snapshot == OLD


def test_a_change_is_taken_once_with_what_was_in_force_before() -> None:
    policy = LivePolicy(OLD)
    policy.set(1, NEW)
    assert policy.take_change() == (OLD, NEW)
    assert policy.take_change() is None


def test_changes_between_two_steps_are_taken_as_one() -> None:
    policy = LivePolicy(OLD)
    policy.set(1, PolicyValues(decoder_kv_blocks_ttl=0))
    policy.set(2, NEW)
    assert policy.take_change() == (OLD, NEW)


def test_a_change_that_was_taken_back_shows_no_difference() -> None:
    policy = LivePolicy(OLD)
    policy.set(1, NEW)
    policy.set(2, OLD)
    assert policy.take_change() == (OLD, OLD)


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (None, OLD),
        (PolicyPatch(), OLD),
        (PolicyPatch(kv_recompute_threshold=0), PolicyValues(kv_recompute_threshold=0)),
        (PolicyPatch(bidirectional_kv_xfer=False), PolicyValues(bidirectional_kv_xfer=False)),
        (PolicyPatch(decoder_kv_blocks_ttl=0), PolicyValues(decoder_kv_blocks_ttl=0)),
    ],
)
def test_a_requests_signed_patch_narrows_the_engines_policy(patch: PolicyPatch | None, expected: PolicyValues) -> None:
    assert for_request(OLD, patch) == expected


def test_what_the_installed_vllm_can_not_follow_is_acked_with_every_revision() -> None:
    policy = LivePolicy(OLD, ("decoder_kv_blocks_ttl",))
    assert policy.applied().unsupported_fields == ("decoder_kv_blocks_ttl",)
    assert policy.set(3, NEW).unsupported_fields == ("decoder_kv_blocks_ttl",)
