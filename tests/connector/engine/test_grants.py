"""What a finished request becomes: a signed offer that another engine's matcher accepts for exactly its tokens."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from connector.engine.cache_shape import plain_shape
from connector.engine.digests import DIGEST_BYTES
from connector.engine.grants import GrantFacts, LeaseFactory
from connector.engine.lease import Lease
from connector.engine.legs import Leg
from connector.engine.matcher import LegMatcher
from connector.engine.offers import FenceWord, KvOffer
from connector.protocol import Decision, LeaseKind, PolicyPatch, PolicyValues, Role
from tests.connector.engine.builders import BLOCK_SIZE, FINGERPRINT, FLEET_KEY, an_envelope
from tests.connector.engine.requests import a_request, leg_params

POLICY = PolicyValues(kv_recompute_threshold=1)
SCHEDULER = SimpleNamespace(
    vllm_config=SimpleNamespace(
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, pipeline_parallel_size=1)
    ),
    engine_id="boot-1",
    block_size=BLOCK_SIZE,
    side_channel_host="127.0.0.1",
    side_channel_port=5601,
    transfer_tp_size=2,
)


def matcher(role: Role) -> LegMatcher:
    return LegMatcher(
        fleet_key=FLEET_KEY, role=role, fingerprint=FINGERPRINT, block_size=BLOCK_SIZE, shape=plain_shape(BLOCK_SIZE)
    )


def factory(role: Role = Role.DECODE) -> LeaseFactory:
    made = LeaseFactory(SCHEDULER, "d-0", role, FINGERPRINT, 1000, lambda offer: FLEET_KEY.sign("offer", offer))
    made.fence_address_of_rank.update({1: 0x2000, 0: 0x1000})
    return made


def granted(request: Any, role: Role = Role.DECODE, *, num_tokens: int, ttl: float = 480.0, **envelope: Any) -> Lease:
    leg = Leg(role=role, envelope=an_envelope(leg=role, **envelope), policy=POLICY)
    chain = matcher(role).digest(request, leg, num_tokens)
    blocks = [[7 + index for index in range(-(-num_tokens // BLOCK_SIZE))]]
    return factory(role).make(request, leg, chain, GrantFacts(blocks, (5, 99), num_tokens, ttl))


def offer_of(lease: Lease, role: Role = Role.DECODE) -> KvOffer:
    return factory(role).offer(lease)


def test_a_session_lease_states_what_is_held_and_until_when() -> None:
    lease = granted(a_request(range(6), reply=[60, 61, 62, 63]), num_tokens=9, chain=("c1", "c2"))
    assert lease.kind is LeaseKind.SESSION
    message = factory().offered(lease)
    said = message.lease
    assert (said.tenant, said.session_id, said.turn_id) == ("default", "session-1", "turn-1")
    assert (said.num_tokens, said.num_blocks, said.num_bytes) == (9, 3, 3000)
    assert said.remaining_seconds == pytest.approx(480, abs=5)
    assert (lease.request_id, message.chain) == ("req-1", ("c1", "c2"))
    offer = FLEET_KEY.verify("offer", message.offer, KvOffer)
    assert (offer.num_tokens, offer.block_ids, len(offer.digests)) == (9, ((7, 8, 9),), 2 * DIGEST_BYTES)
    assert (offer.engine, offer.incarnation, offer.host, offer.port) == ("d-0", "boot-1", "127.0.0.1", 5601)
    assert (offer.lease_id, offer.request_id, offer.tp_size) == (lease.lease_id, "req-1", 2)
    assert offer.expires_at_source == lease.deadline
    assert 479 < lease.deadline - time.perf_counter() <= 480


def test_a_handoff_has_no_expiry_of_its_own() -> None:
    lease = granted(a_request(range(6), reply=[60]), Role.PREFILL, num_tokens=6, ttl=30)
    assert (lease.kind, offer_of(lease, Role.PREFILL).expires_at_source) == (LeaseKind.HANDOFF, None)


def test_each_lease_has_an_id_of_its_own() -> None:
    request = a_request(range(6), reply=[60])
    assert granted(request, num_tokens=6).lease_id != granted(request, num_tokens=6).lease_id


def test_every_rank_has_its_fence_word_at_the_leases_slot() -> None:
    offer = offer_of(granted(a_request(range(6), reply=[60]), num_tokens=6))
    assert offer.fence_words == (FenceWord(0, 0x1000 + 8 * 5), FenceWord(1, 0x2000 + 8 * 5))
    assert offer.fence_generation == 99


def test_a_block_in_two_groups_is_held_once() -> None:
    request = a_request(range(6), reply=[60])
    leg = Leg(role=Role.DECODE, envelope=an_envelope(), policy=POLICY)
    chain = matcher(Role.DECODE).digest(request, leg, 6)
    lease = factory().make(request, leg, chain, GrantFacts([[1, 2], [2, 3]], (0, 1), 6, 60))
    said = factory().granted(lease)
    assert (lease.block_ids, said.num_blocks, said.num_bytes) == (((1, 2), (2, 3)), 3, 3000)


@pytest.mark.parametrize(
    ("patch", "has_own_ttl"),
    [
        (None, False),
        (PolicyPatch(), False),
        (PolicyPatch(kv_recompute_threshold=1), False),
        (PolicyPatch(decoder_kv_blocks_ttl=60), True),
        (PolicyPatch(decoder_kv_blocks_ttl=0), True),
    ],
)
def test_a_lease_knows_whether_its_ttl_is_its_sessions_own(patch: PolicyPatch | None, has_own_ttl: bool) -> None:
    assert granted(a_request(range(6), reply=[60]), num_tokens=6, policy=patch).has_own_ttl is has_own_ttl


@pytest.mark.parametrize(
    ("role", "policy", "can_be_read", "ttl"),
    [
        (Role.DECODE, {}, True, 480.0),
        (Role.DECODE, {"decoder_kv_blocks_ttl": 0}, True, 0.0),
        (Role.DECODE, {"bidirectional_kv_xfer": False}, True, 0.0),
        (Role.DECODE, {}, False, 0.0),
        (Role.PREFILL, {}, True, 30.0),
        (Role.PREFILL, {"bidirectional_kv_xfer": False, "decoder_kv_blocks_ttl": 0}, True, 30.0),
        (Role.PREFILL, {}, False, 0.0),
    ],
)
def test_decode_leases_by_its_ttl_and_prefill_hands_over_what_can_be_read(
    role: Role, policy: dict[str, Any], can_be_read: bool, ttl: float
) -> None:
    assert factory(role).ttl_seconds(PolicyValues(**policy), can_be_read=can_be_read) == ttl


def test_a_renewal_carries_an_offer_with_the_fresh_expiry() -> None:
    lease = granted(a_request(range(6), reply=[60]), num_tokens=6)
    before = offer_of(lease)
    lease.deadline = time.perf_counter() + 900
    lease.pinned = True
    renewed = factory().renewed(lease)
    offer = FLEET_KEY.verify("offer", renewed.offer, KvOffer)
    assert renewed.lease.pinned
    assert renewed.lease.remaining_seconds == pytest.approx(900, abs=5)
    assert offer.expires_at_source == lease.deadline
    assert structs.replace(offer, expires_at_source=before.expires_at_source) == before


# ---------------------------------------------------------------- from one engine to the other


def test_the_next_turn_pulls_what_decode_computed_and_no_token_more() -> None:
    """The last sampled token has no KV: 6 prompt and 7 reply tokens make 12 computed ones, of which 12 are whole."""
    history = [*range(6), *range(60, 67)]
    lease = granted(a_request(range(6), reply=range(60, 67)), num_tokens=12)
    params = leg_params(an_envelope(), offer_of(lease))
    request = a_request([*history, 1, 2, 3], params)
    prefill = matcher(Role.PREFILL)
    leg = prefill.open(request, params, POLICY)
    assert leg is not None
    match = prefill.match(request, leg, 0)
    assert (match.decision, match.num_pull_tokens, match.num_blocks) == (Decision.PULLED, 12, 3)
    prefill.write_back(leg, match, params)
    assert (params["remote_block_ids"], params["remote_num_tokens"]) == ([[7, 8, 9]], 12)


def test_decode_takes_the_whole_prompt_that_prefill_computed() -> None:
    lease = granted(a_request(range(10), reply=[60]), Role.PREFILL, num_tokens=10)
    params = leg_params(an_envelope(leg=Role.DECODE), offer_of(lease, Role.PREFILL))
    request = a_request(range(10), params)
    decode = matcher(Role.DECODE)
    leg = decode.open(request, params, POLICY)
    assert leg is not None
    match = decode.match(request, leg, 4)
    assert (match.decision, match.num_pull_tokens, match.is_whole_offer) == (Decision.PULLED, 6, True)
