"""Only what the router and a source signed, for this leg and in time, is believed; all else is one error."""

import time
from typing import Any

import msgspec
import pytest

from connector.engine.legs import DECISION_OF_OUTCOME, Leg, read_envelope, read_offer
from connector.engine.matching import Match
from connector.protocol import Decision, LegEnvelope, PolicyValues, Role, TransferOutcome
from connector.signing import FleetKey, InvalidTokenError
from tests.connector.engine.builders import FLEET_KEY, an_envelope, an_offer

OTHER_KEY = FleetKey({"k1": bytes(range(1, 33))})
UNKNOWN_KEY = FleetKey({"k9": bytes(range(32))})


def params_with(envelope: object = None, offer: object = None) -> dict[str, Any]:
    return {"do_remote_decode": True, "backhaul": {"envelope": envelope, "offer": offer}}


def signed(envelope: LegEnvelope, key: FleetKey = FLEET_KEY, purpose: str = "envelope") -> str:
    return key.sign(purpose, envelope)


def tampered(token: str, part: int) -> str:
    parts = token.split(".")
    middle = len(parts[part]) // 2
    swapped = "A" if parts[part][middle] != "A" else "B"
    parts[part] = parts[part][:middle] + swapped + parts[part][middle + 1 :]
    return ".".join(parts)


# ---------------------------------------------------------------- envelope


def test_the_envelope_of_this_leg_is_read_whole() -> None:
    envelope = an_envelope(traceparent="00-1-2-01", chain=("a", "b"))
    assert read_envelope(params_with(signed(envelope)), FLEET_KEY, Role.PREFILL) == envelope


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({}, id="no params of ours"),
        pytest.param({"backhaul": None}, id="null"),
        pytest.param({"backhaul": "text"}, id="text"),
        pytest.param({"backhaul": []}, id="list"),
        pytest.param({"backhaul": {}}, id="no envelope"),
        pytest.param(params_with(None), id="null envelope"),
        pytest.param(params_with(7), id="number"),
        pytest.param(params_with(""), id="empty"),
        pytest.param(params_with("..."), id="dots"),
        pytest.param(params_with("k1.e30.00"), id="made up"),
        pytest.param(params_with(signed(an_envelope(), OTHER_KEY)), id="wrong key"),
        pytest.param(params_with(signed(an_envelope(), UNKNOWN_KEY)), id="unknown key id"),
        pytest.param(params_with(signed(an_envelope(), purpose="offer")), id="wrong purpose"),
        pytest.param(params_with(FLEET_KEY.sign("offer", an_offer())), id="an offer instead"),
        pytest.param(params_with(signed(an_envelope(leg=Role.DECODE))), id="other leg"),
        pytest.param(params_with(signed(an_envelope(expires_unix=time.time() - 1))), id="expired"),
        pytest.param(params_with(tampered(signed(an_envelope()), 0)), id="key id changed"),
        pytest.param(params_with(tampered(signed(an_envelope()), 1)), id="payload changed"),
        pytest.param(params_with(tampered(signed(an_envelope()), 2)), id="signature changed"),
        pytest.param(params_with(signed(an_envelope())[:-1]), id="cut short"),
        pytest.param(params_with(signed(an_envelope()) + "0"), id="too long"),
    ],
)
def test_no_other_envelope_is_believed(params: dict[str, Any]) -> None:
    with pytest.raises(InvalidTokenError):
        read_envelope(params, FLEET_KEY, Role.PREFILL)


class OlderEnvelope(msgspec.Struct, kw_only=True):
    """What a router of another version might sign: a required field is missing."""

    leg: Role = Role.PREFILL
    tenant: str = "default"


class NewerEnvelope(LegEnvelope, frozen=True, kw_only=True):
    """What the next version might sign: one field more."""

    priority: int = 3


def test_an_envelope_without_a_required_field_is_refused() -> None:
    with pytest.raises(InvalidTokenError, match="another version"):
        read_envelope(params_with(FLEET_KEY.sign("envelope", OlderEnvelope())), FLEET_KEY, Role.PREFILL)


def test_an_envelope_with_a_field_more_is_read_without_it() -> None:
    known = an_envelope()
    newer = NewerEnvelope(**{field: getattr(known, field) for field in known.__struct_fields__})
    assert read_envelope(params_with(FLEET_KEY.sign("envelope", newer)), FLEET_KEY, Role.PREFILL) == known


def test_a_previous_key_still_verifies() -> None:
    rotated = FleetKey({"k2": b"n" * 32, "k1": bytes(range(32))})
    assert read_envelope(params_with(signed(an_envelope())), rotated, Role.PREFILL).turn_id == "turn-1"


# ---------------------------------------------------------------- offer


@pytest.mark.parametrize("token", [None, ""])
def test_no_offer_is_not_an_error(token: str | None) -> None:
    assert read_offer(params_with(offer=token), FLEET_KEY) is None


def test_a_signed_offer_is_read_whole() -> None:
    offer = an_offer(range(10))
    assert read_offer(params_with(offer=FLEET_KEY.sign("offer", offer)), FLEET_KEY) == offer


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(0, id="zero"),
        pytest.param([], id="empty list"),
        pytest.param({"lease_id": "x"}, id="unsigned"),
        pytest.param("x", id="text"),
        pytest.param(OTHER_KEY.sign("offer", an_offer()), id="wrong key"),
        pytest.param(FLEET_KEY.sign("envelope", an_offer()), id="wrong purpose"),
        pytest.param(FLEET_KEY.sign("offer", an_envelope()), id="an envelope"),
        pytest.param(tampered(FLEET_KEY.sign("offer", an_offer()), 1), id="payload changed"),
        pytest.param(tampered(FLEET_KEY.sign("offer", an_offer()), 2), id="signature changed"),
    ],
)
def test_no_other_offer_is_believed(token: object) -> None:
    with pytest.raises(InvalidTokenError):
        read_offer(params_with(offer=token), FLEET_KEY)


# ---------------------------------------------------------------- what became of a leg


def a_leg(**changes: Any) -> Leg:
    leg = Leg(
        role=Role.PREFILL,
        envelope=an_envelope(traceparent="00-1-2-01"),
        policy=PolicyValues(),
        offer=an_offer(range(8)),
        match=Match(decision=Decision.PULLED, num_verified_tokens=8, num_pull_tokens=4, num_blocks=2),
        decision=Decision.PULLED,
        num_prompt_tokens=11,
        num_local_tokens=4,
    )
    for field, value in changes.items():
        setattr(leg, field, value)
    return leg


def test_a_completed_pull_counts_its_tokens_and_keeps_its_decision() -> None:
    leg = a_leg()
    leg.settle(TransferOutcome.COMPLETED)
    decided = leg.decided()
    assert (decided.decision, decided.num_pulled_tokens) == (Decision.PULLED, 4)
    assert (decided.num_prompt_tokens, decided.num_offered_tokens) == (11, 8)
    assert (decided.num_verified_tokens, decided.num_local_tokens) == (8, 4)
    assert (decided.turn_id, decided.session_id, decided.traceparent) == ("turn-1", "session-1", "00-1-2-01")


@pytest.mark.parametrize(
    ("outcome", "decision"),
    [
        (TransferOutcome.FAILED, Decision.TRANSFER_FAILED),
        (TransferOutcome.TIMEOUT, Decision.TIMEOUT),
        (TransferOutcome.FENCED, Decision.EXPIRED),
    ],
)
def test_any_other_outcome_replaces_the_decision_and_counts_nothing(
    outcome: TransferOutcome, decision: Decision
) -> None:
    leg = a_leg()
    leg.settle(outcome)
    assert (leg.decided().decision, leg.decided().num_pulled_tokens) == (decision, 0)


def test_every_outcome_but_completed_has_a_decision() -> None:
    assert set(DECISION_OF_OUTCOME) == set(TransferOutcome) - {TransferOutcome.COMPLETED}


def test_a_leg_without_an_offer_had_no_placement() -> None:
    decided = a_leg(offer=None, match=None, decision=None).decided()
    assert decided.decision is Decision.NO_PLACEMENT
    assert (decided.num_offered_tokens, decided.num_verified_tokens, decided.num_pulled_tokens) == (0, 0, 0)


@pytest.mark.parametrize(
    ("num_prompt", "num_offered", "num_verified", "diverged_at"),
    [
        (100, 60, 60, None),
        (100, 62, 60, None),
        (30, 60, 28, None),
        (28, 60, 28, None),
        (100, 60, 40, 40),
        (100, 60, 0, 0),
        (30, 60, 24, 24),
        (3, 60, 0, None),
    ],
    ids=[
        "appended",
        "appended, partial block",
        "shorter",
        "shorter by blocks",
        "edited",
        "other start",
        "both",
        "tiny",
    ],
)
def test_a_leg_says_in_which_block_the_prompt_diverged(
    num_prompt: int, num_offered: int, num_verified: int, diverged_at: int | None
) -> None:
    """Field report 1 (vllm-project/vllm#43094): a rewritten history is told, an appended or a shorter one is not."""
    decision = Decision.TRIMMED_PREFIX_DIVERGED if num_verified else Decision.PREFIX_DIVERGED
    match = Match(decision=decision, num_verified_tokens=num_verified)
    leg = a_leg(offer=an_offer(range(num_offered)), match=match, num_prompt_tokens=num_prompt)
    assert leg.diverged_at_token == leg.decided().diverged_at_token == diverged_at


@pytest.mark.parametrize("decision", [Decision.REJECTED, Decision.UNSUPPORTED])
def test_a_leg_that_compared_nothing_says_nothing_of_divergence(decision: Decision) -> None:
    leg = a_leg(offer=an_offer(range(60)), match=Match(decision=decision), num_prompt_tokens=60)
    assert leg.diverged_at_token is None
    assert a_leg(offer=None).diverged_at_token is None
