"""Opening, matching and writing back a leg: vLLM sees verified facts or none, with the first reason that holds."""

from types import SimpleNamespace
from typing import Any

import pytest

from connector.engine.cache_shape import CacheGroup, CacheShape, GroupKind, plain_shape
from connector.engine.legs import Leg
from connector.engine.matcher import REMOTE_FIELDS, LegMatcher, clear_remote_fields
from connector.engine.matching import Match
from connector.engine.offers import KvOffer
from connector.protocol import Decision, PolicyPatch, PolicyValues, Role
from connector.signing import FleetKey
from tests.connector.engine.builders import BLOCK_SIZE, FINGERPRINT, FLEET_KEY, an_envelope, an_offer
from tests.connector.engine.requests import a_request, leg_params

PLAIN = plain_shape(BLOCK_SIZE)
RECURRENT = CacheShape((*PLAIN.groups, CacheGroup(GroupKind.STATE, BLOCK_SIZE)))
UNKNOWN = CacheShape((CacheGroup(GroupKind.UNKNOWN, BLOCK_SIZE),))
OTHER_KEY = FleetKey({"k1": b"o" * 32})
POLICY = PolicyValues(kv_recompute_threshold=1)
FORGED = {
    "remote_engine_id": "evil",
    "remote_request_id": "victim",
    "remote_host": "10.0.0.1",
    "remote_port": 1,
    "remote_num_tokens": 10**6,
    "remote_block_ids": [[1, 2, 3]],
    "_remote_blocks_processed": True,
}


def matcher(role: Role = Role.PREFILL, *, shape: CacheShape = PLAIN) -> LegMatcher:
    return LegMatcher(fleet_key=FLEET_KEY, role=role, fingerprint=FINGERPRINT, block_size=BLOCK_SIZE, shape=shape)


def opened(offer: KvOffer | None, *, role: Role = Role.PREFILL, policy: PolicyValues = POLICY, **envelope: Any) -> Leg:
    params = leg_params(an_envelope(leg=role, **envelope), offer)
    leg = matcher(role).open(a_request(range(9), params), params, policy)
    assert leg is not None
    return leg


# ---------------------------------------------------------------- opening


def test_nothing_that_a_caller_wrote_survives() -> None:
    params = leg_params(None, None, **FORGED)
    assert matcher().open(a_request(range(9), params), params, POLICY) is None
    assert all(params[field] is None for field in REMOTE_FIELDS)
    assert "_remote_blocks_processed" not in params


def test_with_an_offer_the_verified_endpoint_is_named_and_no_blocks() -> None:
    offer = an_offer()
    params = leg_params(an_envelope(), offer, **FORGED)
    matcher().open(a_request(range(9), params), params, POLICY)
    assert (params["remote_engine_id"], params["remote_request_id"]) == ("d-0-boot", "req-d")
    assert (params["remote_host"], params["remote_port"]) == ("127.0.0.1", 5600)
    assert params["remote_block_ids"] == []
    assert params["remote_num_tokens"] == 0
    assert "_remote_blocks_processed" not in params


def test_with_a_refused_offer_nothing_is_named() -> None:
    params = leg_params(an_envelope(), an_offer(tenant="other"), **FORGED)
    leg = matcher().open(a_request(range(9), params), params, POLICY)
    assert leg is not None
    assert (leg.offer, leg.refusal) == (None, Decision.REJECTED)
    assert all(params[field] is None for field in REMOTE_FIELDS)


def test_a_leg_remembers_its_prompt_and_one_snapshot_of_the_policy() -> None:
    leg = opened(None, policy=POLICY)
    assert (leg.role, leg.num_prompt_tokens, leg.policy) == (Role.PREFILL, 9, POLICY)


NO_REUSE = PolicyValues(bidirectional_kv_xfer=False)


@pytest.mark.parametrize(
    ("offer", "role", "policy", "envelope", "refusal"),
    [
        pytest.param(an_offer(), Role.PREFILL, POLICY, {}, None, id="usable"),
        pytest.param(an_offer(), Role.PREFILL, NO_REUSE, {}, Decision.DISABLED, id="disabled"),
        pytest.param(None, Role.PREFILL, NO_REUSE, {}, Decision.DISABLED, id="disabled before no placement"),
        pytest.param(
            an_offer(tenant="x"), Role.PREFILL, NO_REUSE, {}, Decision.DISABLED, id="disabled before rejected"
        ),
        pytest.param(None, Role.PREFILL, POLICY, {}, Decision.NO_PLACEMENT, id="no placement"),
        pytest.param(
            None,
            Role.PREFILL,
            POLICY,
            {"reason_without_offer": Decision.QUOTA},
            Decision.QUOTA,
            id="the router's reason for no offer",
        ),
        pytest.param(
            an_offer(),
            Role.PREFILL,
            POLICY,
            {"reason_without_offer": Decision.QUOTA},
            None,
            id="an offer needs no reason",
        ),
        pytest.param(
            an_offer(tenant="x", block_size=8), Role.PREFILL, POLICY, {}, Decision.REJECTED, id="rejected first"
        ),
        pytest.param(an_offer(block_size=8), Role.PREFILL, POLICY, {}, Decision.UNSUPPORTED, id="block size"),
        pytest.param(an_offer(role=Role.PREFILL), Role.DECODE, NO_REUSE, {}, None, id="a handoff is no reuse"),
    ],
)
def test_the_first_reason_that_holds_is_told(
    offer: KvOffer | None, role: Role, policy: PolicyValues, envelope: dict[str, Any], refusal: Decision | None
) -> None:
    leg = opened(offer, role=role, policy=policy, **envelope)
    assert leg.refusal is refusal
    assert (leg.offer is None) == (refusal is not None or offer is None)


def test_a_forged_offer_is_rejected_and_the_leg_goes_on() -> None:
    params = leg_params(an_envelope())
    params["backhaul"]["offer"] = OTHER_KEY.sign("offer", an_offer())
    leg = matcher().open(a_request(range(9), params), params, POLICY)
    assert leg is not None
    assert (leg.offer, leg.refusal) == (None, Decision.REJECTED)


def unsupported_by(shape: CacheShape, role: Role, offer: KvOffer | None) -> bool:
    params = leg_params(an_envelope(leg=role), offer)
    leg = matcher(role, shape=shape).open(a_request(range(9), params), params, POLICY)
    assert leg is not None
    return leg.refusal is Decision.UNSUPPORTED


@pytest.mark.parametrize(
    ("shape", "is_reused", "is_handed_over"), [(PLAIN, True, True), (RECURRENT, False, True), (UNKNOWN, False, False)]
)
def test_a_kind_of_model_that_a_leg_cannot_read_is_told_with_and_without_an_offer(
    shape: CacheShape, is_reused: bool, is_handed_over: bool
) -> None:
    assert unsupported_by(shape, Role.PREFILL, an_offer()) is not is_reused
    assert unsupported_by(shape, Role.PREFILL, None) is not is_reused
    assert unsupported_by(shape, Role.DECODE, an_offer(role=Role.PREFILL)) is not is_handed_over
    assert unsupported_by(shape, Role.DECODE, None) is not is_handed_over
    assert matcher(Role.DECODE, shape=shape).can_be_read is is_reused
    assert matcher(Role.PREFILL, shape=shape).can_be_read is is_handed_over


# ---------------------------------------------------------------- matching


def a_chain_of(request: Any, role: Role = Role.PREFILL) -> Leg:
    """A leg of this request without an offer, whose digests the matcher has made."""
    leg = Leg(role=role, envelope=an_envelope(), policy=POLICY)
    matcher().digest(request, leg, len(request.all_token_ids))
    return leg


def offer_for(request: Any) -> KvOffer:
    """What a source that held this very request would offer."""
    leg = a_chain_of(request)
    assert leg.chain is not None
    tokens = request.all_token_ids
    return an_offer(tokens, digests=b"".join(leg.chain.digests), tail_digest=leg.chain.tail(tokens, len(tokens)))


def matched(request: Any, offer: KvOffer, local: int = 0) -> Match:
    leg = Leg(role=Role.PREFILL, envelope=an_envelope(), policy=POLICY, offer=offer)
    return matcher().match(request, leg, local)


def test_the_same_history_is_pulled() -> None:
    match = matched(a_request(range(14)), offer_for(a_request(range(12))))
    assert (match.decision, match.num_pull_tokens) == (Decision.PULLED, 12)


@pytest.mark.parametrize(
    "changes",
    [
        {"cache_salt": "salt-of-another-tenant"},
        {"cache_salt": None},
        {"lora_request": SimpleNamespace(lora_name="sql", lora_path="/sql", lora_int_id=1)},
    ],
)
def test_equal_tokens_of_another_tenant_or_adapter_are_not_shared(changes: dict[str, Any]) -> None:
    match = matched(a_request(range(14), **changes), offer_for(a_request(range(12))))
    assert match == Match(decision=Decision.PREFIX_DIVERGED)


def an_image(identifier: str) -> Any:
    position = type("Position", (), {"offset": 5, "length": 2})()
    return type("Feature", (), {"identifier": identifier, "mm_position": position})()


def test_another_image_behind_equal_placeholder_tokens_diverges() -> None:
    held = offer_for(a_request(range(12), mm_features=[an_image("cat")]))
    assert matched(a_request(range(14), mm_features=[an_image("cat")]), held).num_pull_tokens == 12
    assert matched(a_request(range(14), mm_features=[an_image("dog")]), held).num_pull_tokens == 4
    assert matched(a_request(range(14)), held).num_pull_tokens == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"skip_reading_prefix_cache": True},
        {"prompt_token_ids": None},
        {"prompt_embeds": object()},
        {"resumable": True},
        {"lora_request": SimpleNamespace(lora_name="sql", lora_path="/sql", lora_int_id=1, load_inplace=True)},
    ],
)
def test_a_request_that_must_not_use_cached_kv_takes_none(changes: dict[str, Any]) -> None:
    assert matched(a_request(range(14), **changes), offer_for(a_request(range(12)))) == Match(
        decision=Decision.UNSUPPORTED
    )


def test_without_an_offer_the_legs_own_reason_is_told() -> None:
    for refusal, told in ((Decision.QUOTA, Decision.QUOTA), (None, Decision.NO_PLACEMENT)):
        leg = Leg(role=Role.PREFILL, envelope=an_envelope(), policy=POLICY, refusal=refusal)
        assert matcher().match(a_request(range(9)), leg, 0) == Match(decision=told)
        assert leg.chain is None  # nothing is hashed for nothing


def test_digests_grow_from_prompt_to_reply() -> None:
    request = a_request(range(9), reply=range(50, 60))
    leg = Leg(role=Role.DECODE, envelope=an_envelope(), policy=POLICY)
    matcher().digest(request, leg, 9)
    grown = matcher().digest(request, leg, 18)
    assert grown.digests == offered_digests(a_request([*range(9), *range(50, 59)]))


def offered_digests(request: Any) -> list[bytes]:
    chain = a_chain_of(request).chain
    assert chain is not None
    return chain.digests


# ---------------------------------------------------------------- writing back

PULL = Match(decision=Decision.TRIMMED_PREFIX_DIVERGED, num_verified_tokens=8, num_pull_tokens=4, num_blocks=2)
NO_PULL = Match(decision=Decision.BELOW_THRESHOLD, num_verified_tokens=8)


@pytest.mark.parametrize(
    ("role", "match", "block_ids", "num_tokens"),
    [
        pytest.param(Role.PREFILL, PULL, [[100, 101]], 8, id="prefill pulls the verified blocks"),
        pytest.param(Role.DECODE, PULL, [[100, 101]], 8, id="decode pulls the verified blocks"),
        pytest.param(Role.PREFILL, NO_PULL, [], 0, id="prefill without a pull tells the source nothing"),
        pytest.param(Role.DECODE, NO_PULL, [[100]], 0, id="decode without a pull lets the source free"),
    ],
)
def test_vllm_is_told_exactly_what_it_may_use(
    role: Role, match: Match, block_ids: list[list[int]], num_tokens: int
) -> None:
    params: dict[str, Any] = {"do_remote_decode": True}
    leg = Leg(role=role, envelope=an_envelope(), policy=POLICY, offer=an_offer(range(12)))
    matcher(role).write_back(leg, match, params)
    assert (params["remote_block_ids"], params["remote_num_tokens"]) == (block_ids, num_tokens)


def test_without_an_offer_nothing_is_written() -> None:
    params: dict[str, Any] = {"do_remote_decode": True}
    leg = Leg(role=Role.DECODE, envelope=an_envelope(), policy=POLICY)
    matcher(Role.DECODE).write_back(leg, NO_PULL, params)
    assert params == {"do_remote_decode": True}


def test_clearing_keeps_what_is_not_remote() -> None:
    params = {"do_remote_prefill": True, "backhaul": {"envelope": "x"}, **FORGED}
    clear_remote_fields(params)
    assert {key: value for key, value in params.items() if value is not None} == {
        "do_remote_prefill": True,
        "backhaul": {"envelope": "x"},
    }


def test_a_signed_patch_narrows_the_policy_of_its_leg() -> None:
    params = leg_params(an_envelope(policy=PolicyPatch(bidirectional_kv_xfer=False)), an_offer())
    leg = matcher().open(a_request(range(9), params), params, POLICY)
    assert leg is not None
    assert (leg.policy.bidirectional_kv_xfer, leg.refusal) == (False, Decision.DISABLED)
