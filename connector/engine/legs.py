"""One leg of a turn as an engine sees it: what came in signed, what was decided, what became of it."""

import time
from typing import Any

import msgspec

from connector.engine.digests import DigestChain
from connector.engine.matching import Match
from connector.engine.offers import PURPOSE as OFFER_PURPOSE
from connector.engine.offers import KvOffer
from connector.protocol import Decision, LegDecided, LegEnvelope, PolicyValues, Role, TransferOutcome
from connector.signing import FleetKey, InvalidTokenError

ENVELOPE_PURPOSE = "envelope"


class Leg(msgspec.Struct, kw_only=True):
    """Mutable state of one request that came with a valid envelope.

    ``policy`` is the one snapshot it reads, ``key`` the one that its offer was verified with. ``digest_key_id`` names
    the key that the digests of ``chain`` were made with. ``refused`` is a verified offer of a known engine that can't
    be used here; its source may still be told so.
    """

    role: Role
    envelope: LegEnvelope
    policy: PolicyValues
    offer: KvOffer | None = None
    refused: KvOffer | None = None
    refusal: Decision | None = None
    key: FleetKey | None = None
    chain: DigestChain | None = None
    digest_key_id: str = ""
    match: Match | None = None
    decision: Decision | None = None
    num_prompt_tokens: int = 0
    num_local_tokens: int = 0
    num_pulled_tokens: int = 0
    is_reported: bool = False

    @property
    def source(self) -> KvOffer | None:
        """Who holds blocks for this leg, whether or not it reads them."""
        return self.offer or self.refused

    def settle(self, outcome: TransferOutcome) -> None:
        """The transfer has the last word on a decision to pull."""
        if outcome is TransferOutcome.COMPLETED:
            self.num_pulled_tokens = self.match.num_pull_tokens if self.match else 0
            return
        self.decision = DECISION_OF_OUTCOME[outcome]

    @property
    def diverged_at_token(self) -> int | None:
        """First token of the block in which prompt and offer differ; absent if one extends the other."""
        if self.offer is None or self.match is None or self.match.decision in NOT_COMPARED:
            return None
        size = self.offer.block_size
        num_comparable = min(self.num_prompt_tokens, self.offer.num_tokens) // size * size
        verified = self.match.num_verified_tokens
        return verified if verified < num_comparable else None

    def decided(self) -> LegDecided:
        return LegDecided(
            turn_id=self.envelope.turn_id,
            session_id=self.envelope.session_id,
            leg=self.role,
            decision=self.decision or Decision.NO_PLACEMENT,
            num_prompt_tokens=self.num_prompt_tokens,
            num_offered_tokens=self.offer.num_tokens if self.offer else 0,
            num_verified_tokens=self.match.num_verified_tokens if self.match else 0,
            num_local_tokens=self.num_local_tokens,
            num_pulled_tokens=self.num_pulled_tokens,
            traceparent=self.envelope.traceparent,
            diverged_at_token=self.diverged_at_token,
        )


NOT_COMPARED = (Decision.REJECTED, Decision.UNSUPPORTED)


DECISION_OF_OUTCOME = {
    TransferOutcome.FAILED: Decision.TRANSFER_FAILED,
    TransferOutcome.TIMEOUT: Decision.TIMEOUT,
    TransferOutcome.FENCED: Decision.EXPIRED,
}


def read_envelope(params: dict[str, Any], key: FleetKey, role: Role) -> LegEnvelope:
    """The router's envelope for this leg. Raises ``InvalidTokenError``: the caller recomputes."""
    ours = params.get("backhaul")
    if not isinstance(ours, dict):
        raise InvalidTokenError("no envelope")
    envelope = key.verify(ENVELOPE_PURPOSE, ours.get("envelope"), LegEnvelope)
    if envelope.leg is not role:
        raise InvalidTokenError("made for the other leg")
    if envelope.expires_unix < time.time():
        raise InvalidTokenError("expired")
    return envelope


def read_offer(params: dict[str, Any], key: FleetKey) -> KvOffer | None:
    """The source's offer, or ``None`` when there is none. Raises ``InvalidTokenError``."""
    token = params["backhaul"].get("offer")
    return None if token in (None, "") else key.verify(OFFER_PURPOSE, token, KvOffer)
