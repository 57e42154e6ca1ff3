"""A verified offer that D can't use: P is told, so that it needn't hold its blocks to the end of their lease."""

from typing import Any

import pytest
from msgspec import structs

from connector.engine.offers import KvOffer
from connector.protocol import Role
from tests.connector.engine.builders import FLEET_KEY
from tests.contract.pair_bench import PROMPT, Pair, reply_of


def decoded(pair: Pair, offer: str, **envelope: Any) -> list[str]:
    """The turn is exact; D's reasons."""
    pair.start_decode("now", PROMPT, offer, **envelope)
    pair.decode.run("d-now")
    assert pair.decode.answers["d-now"] == reply_of(PROMPT, 3)
    pair.settle()
    return pair.decode.decisions()


def changed(offer: str, **changes: object) -> str:
    verified = FLEET_KEY.verify("offer", offer, KvOffer)
    return FLEET_KEY.sign("offer", structs.replace(verified, **changes))


def test_an_offer_of_another_tenant_is_told_to_its_source(pair: Pair) -> None:
    offer = pair.prefilled("now", PROMPT)
    assert decoded(pair, offer, tenant="another") == ["recomputed_rejected"]
    assert pair.prefill.scheduler.requests == {}
    assert pair.decode.transfers() == []


@pytest.mark.parametrize("change", [{"model_fingerprint": b"x" * 16}, {"block_size": 8}])
def test_an_offer_that_does_not_fit_is_told_to_its_source(pair: Pair, change: dict[str, object]) -> None:
    offer = pair.prefilled("now", PROMPT)
    assert decoded(pair, changed(offer, **change)) == ["recomputed_unsupported"]
    assert pair.prefill.scheduler.requests == {}


@pytest.mark.parametrize("offer", [None, "k1.forged.mac"])
def test_without_a_verified_offer_nobody_is_told(pair: Pair, offer: str | None) -> None:
    pair.prefilled("now", PROMPT)
    decoded(pair, offer or "")
    assert len(pair.prefill.scheduler.requests) == 1
    assert pair.decode.nixls[0].notices() == []
    pair.expire_all()
    assert pair.leftovers() == []


def test_an_engine_of_its_own_role_is_not_called(pair: Pair) -> None:
    offer = changed(pair.prefilled("now", PROMPT), role=Role.DECODE)
    assert decoded(pair, offer) == ["recomputed_rejected"]
    assert pair.decode.nixls[0].notices() == []


def test_a_client_that_leaves_before_a_refused_leg_was_scheduled_frees_prefill_too(pair: Pair) -> None:
    offer = pair.prefilled("now", PROMPT)
    pair.start_decode("now", PROMPT, offer, tenant="another")
    pair.decode.abort("d-now")
    pair.settle()
    assert pair.prefill.scheduler.requests == {}
    pair.expire_all()
    assert pair.leftovers() == []
