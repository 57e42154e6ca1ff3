"""One reason code per leg: of everything that holds against a pull, the first in the operator's order is told.

Every combination of the reasons that the engine itself finds before a transfer. What a transfer adds to them, its
expiry included, is told by its outcome.
"""

import itertools

import pytest

from connector.engine.cache_shape import CacheGroup, CacheShape, GroupKind, plain_shape
from connector.engine.matcher import LegMatcher
from connector.engine.offers import KvOffer
from connector.engine.peers import PeerBook
from connector.protocol import Decision, Peer, PolicyValues, Role, SetPeers
from tests.connector.engine.builders import BLOCK_SIZE, FINGERPRINT, FLEET_KEY, an_envelope, an_offer
from tests.connector.engine.requests import a_request, leg_params

PROMPT = range(18)
IN_ORDER = (
    Decision.DISABLED,
    Decision.NO_PLACEMENT,
    Decision.QUOTA,
    Decision.REJECTED,
    Decision.UNSUPPORTED,
    Decision.SOURCE_LOST,
    Decision.PREFIX_DIVERGED,
    Decision.LOCAL_PREFIX_HIT,
    Decision.BELOW_THRESHOLD,
)
LOST = PeerBook()
LOST.set(SetPeers(peers=(Peer(name="d-0", incarnation="d-0-next", former=("d-0-boot",)),)))
UNKNOWN = CacheShape((CacheGroup(GroupKind.UNKNOWN, BLOCK_SIZE),))
ALONE = {
    Role.PREFILL: set(IN_ORDER),
    # Whether P may reuse and when a pull is worth it are no questions of the handoff.
    Role.DECODE: set(IN_ORDER) - {Decision.DISABLED, Decision.BELOW_THRESHOLD},
}


def combinations() -> list[frozenset[Decision]]:
    """All that can hold at once: a missing offer is missing for one reason, and has no contents."""
    found = []
    for size in range(len(IN_ORDER) + 1):
        for chosen in map(frozenset, itertools.combinations(IN_ORDER, size)):
            is_missing = chosen & {Decision.NO_PLACEMENT, Decision.QUOTA}
            if len(is_missing) < 2:
                found.append(chosen)
    return found


def the_offer(role: Role, holds: frozenset[Decision]) -> KvOffer | None:
    if holds & {Decision.NO_PLACEMENT, Decision.QUOTA}:
        return None
    request = a_request([99, *PROMPT] if Decision.PREFIX_DIVERGED in holds else [*PROMPT])
    source = Role.DECODE if role is Role.PREFILL else Role.PREFILL
    made_by = LegMatcher(
        fleet_key=FLEET_KEY, role=source, fingerprint=FINGERPRINT, block_size=BLOCK_SIZE, shape=plain_shape(BLOCK_SIZE)
    )
    leg = made_by.open(request, leg_params(an_envelope(leg=source)), PolicyValues())
    assert leg is not None
    tokens = request.all_token_ids[:16]
    chain = made_by.digest(request, leg, len(tokens))
    return an_offer(
        tokens,
        role=source,
        tenant="other" if Decision.REJECTED in holds else "default",
        digests=b"".join(chain.digests),
        tail_digest=chain.tail(tokens, len(tokens)),
        digest_key_id=leg.digest_key_id,
    )


def told(role: Role, holds: frozenset[Decision]) -> Decision:
    policy = PolicyValues(
        bidirectional_kv_xfer=Decision.DISABLED not in holds,
        kv_recompute_threshold=1000 if Decision.BELOW_THRESHOLD in holds else 1,
    )
    matcher = LegMatcher(
        fleet_key=FLEET_KEY,
        role=role,
        fingerprint=FINGERPRINT,
        block_size=BLOCK_SIZE,
        shape=plain_shape(BLOCK_SIZE) if Decision.UNSUPPORTED not in holds else UNKNOWN,
        peers=LOST if Decision.SOURCE_LOST in holds else None,
    )
    reason = Decision.QUOTA if Decision.QUOTA in holds else None
    if Decision.NO_PLACEMENT in holds:
        reason = Decision.NO_PLACEMENT
    params = leg_params(an_envelope(leg=role, reason_without_offer=reason), the_offer(role, holds))
    request = a_request([*PROMPT], params)
    leg = matcher.open(request, params, policy)
    assert leg is not None
    match = matcher.match(request, leg, 16 if Decision.LOCAL_PREFIX_HIT in holds else 0)
    assert (match.num_pull_tokens > 0) is (match.decision in (Decision.PULLED, Decision.TRIMMED_PREFIX_DIVERGED))
    return match.decision


@pytest.mark.parametrize("role", list(Role))
def test_the_first_reason_that_holds_is_told(role: Role) -> None:
    for holds in combinations():
        against = [reason for reason in IN_ORDER if reason in holds & ALONE[role]]
        expected = against[0] if against else Decision.PULLED
        if not against and role is Role.DECODE:
            expected = Decision.TRIMMED_PREFIX_DIVERGED  # the offer is of fewer tokens than the prompt
        assert told(role, holds) is expected, sorted(holds)


def test_every_combination_is_tried() -> None:
    assert len(combinations()) == 3 * 2**7
