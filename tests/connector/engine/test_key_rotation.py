"""A fleet key rotated under living leases: what the old key made still pulls while its line is there."""

from typing import Any

import pytest

from connector.engine.cache_shape import plain_shape
from connector.engine.legs import Leg
from connector.engine.matcher import LegMatcher
from connector.engine.offers import OFFER_FORMAT, KvOffer
from connector.protocol import Decision, PolicyValues, Role
from connector.signing import FleetKey
from tests.connector.engine.builders import BLOCK_SIZE, FINGERPRINT, an_envelope, an_offer
from tests.connector.engine.requests import a_request

OLD = bytes(range(32))
NEW = bytes(range(50, 82))
BEFORE = FleetKey({"k1": OLD})
DURING = FleetKey({"k2": NEW, "k1": OLD})
AFTER = FleetKey({"k2": NEW})
HISTORY = list(range(12))
POLICY = PolicyValues(kv_recompute_threshold=1)


class Engine:
    """A matcher whose key file can be replaced; D if it makes offers, P if it reads them, and the other way round."""

    def __init__(self, role: Role, key: FleetKey) -> None:
        self.current = key
        self.role = role
        self.matcher = LegMatcher(
            fleet_key=self, role=role, fingerprint=FINGERPRINT, block_size=BLOCK_SIZE, shape=plain_shape(BLOCK_SIZE)
        )

    def offer_of(self, tokens: list[int]) -> KvOffer:
        """What it holds of a finished request, keyed with the key that signs now."""
        leg = Leg(role=self.role, envelope=an_envelope(leg=self.role), policy=POLICY)
        chain = self.matcher.digest(a_request(tokens), leg, len(tokens))
        return an_offer(
            tokens,
            role=self.role,
            digests=b"".join(chain.digests),
            tail_digest=chain.tail(tokens, len(tokens)),
            digest_key_id=leg.digest_key_id,
        )

    def leg_of(self, token: str, router: FleetKey, prompt: list[int]) -> tuple[Any, Leg]:
        params = {
            "do_remote_decode": True,
            "backhaul": {"envelope": router.sign("envelope", an_envelope(leg=self.role)), "offer": token},
        }
        request = a_request(prompt, params)
        leg = self.matcher.open(request, params, POLICY)
        assert leg is not None
        return request, leg

    def pull(self, token: str, router: FleetKey, prompt: list[int]) -> tuple[Decision, int]:
        request, leg = self.leg_of(token, router, prompt)
        match = self.matcher.match(request, leg, 0)
        return match.decision, match.num_pull_tokens


@pytest.mark.parametrize("direction", [(Role.DECODE, Role.PREFILL), (Role.PREFILL, Role.DECODE)], ids=["D->P", "P->D"])
@pytest.mark.parametrize(
    ("made_with", "signed_with", "read_with", "told"),
    [
        pytest.param(BEFORE, BEFORE, BEFORE, Decision.PULLED, id="no rotation"),
        pytest.param(BEFORE, BEFORE, DURING, Decision.PULLED, id="made before it"),
        pytest.param(BEFORE, DURING, DURING, Decision.PULLED, id="made before it, signed again since"),
        pytest.param(DURING, DURING, DURING, Decision.PULLED, id="made during it"),
        pytest.param(DURING, DURING, AFTER, Decision.PULLED, id="made during it, read after it"),
        pytest.param(BEFORE, BEFORE, AFTER, Decision.REJECTED, id="made before it, the old line is gone"),
        pytest.param(BEFORE, AFTER, AFTER, Decision.REJECTED, id="signed with the new key, digests of the old one"),
        pytest.param(DURING, DURING, BEFORE, Decision.REJECTED, id="a reader that has no new file yet"),
    ],
)
def test_an_offer_is_read_while_its_key_is_in_the_file(
    direction: tuple[Role, Role], made_with: FleetKey, signed_with: FleetKey, read_with: FleetKey, told: Decision
) -> None:
    source, reader = Engine(direction[0], made_with), Engine(direction[1], read_with)
    offer = source.offer_of(HISTORY)
    router = read_with
    decision, num_tokens = reader.pull(signed_with.sign("offer", offer), router, HISTORY)
    assert (decision, num_tokens) == (told, len(HISTORY) if told is Decision.PULLED else 0)


def test_a_leg_read_with_the_old_key_is_offered_with_the_new_one() -> None:
    prefill = Engine(Role.PREFILL, DURING)
    token = BEFORE.sign("offer", Engine(Role.DECODE, BEFORE).offer_of(HISTORY))
    request, leg = prefill.leg_of(token, DURING, HISTORY)
    assert prefill.matcher.match(request, leg, 0).num_pull_tokens == len(HISTORY)
    assert leg.digest_key_id == "k1"
    mine = prefill.matcher.digest(request, leg, len(HISTORY))
    assert leg.digest_key_id == "k2"
    fresh = Leg(role=Role.PREFILL, envelope=an_envelope(), policy=POLICY)
    assert mine.digests == Engine(Role.PREFILL, AFTER).matcher.digest(request, fresh, len(HISTORY)).digests


def test_a_leg_opened_before_the_old_line_went_is_matched_after_it() -> None:
    prefill = Engine(Role.PREFILL, DURING)
    token = BEFORE.sign("offer", Engine(Role.DECODE, BEFORE).offer_of(HISTORY))
    request, leg = prefill.leg_of(token, DURING, HISTORY)
    prefill.current = AFTER
    assert prefill.matcher.match(request, leg, 0).decision is Decision.PULLED


def test_each_refusal_is_counted_by_its_reason() -> None:
    prefill = Engine(Role.PREFILL, AFTER)
    offer = Engine(Role.DECODE, AFTER).offer_of(HISTORY)
    good = AFTER.sign("offer", offer)
    foreign = AFTER.sign("offer", an_envelope())
    for token in (BEFORE.sign("offer", offer), good[:-1] + ("0" if good[-1] != "0" else "1"), "nonsense", foreign):
        prefill.pull(token, AFTER, HISTORY)
    older = an_offer(HISTORY, format=OFFER_FORMAT - 1, digest_key_id="")
    assert prefill.pull(AFTER.sign("offer", older), AFTER, HISTORY) == (Decision.UNSUPPORTED, 0)
    assert prefill.matcher.num_refused == {
        "unknown_key": 2,
        "bad_signature": 1,
        "other_format": 2,
    }
