"""The signed leg envelope, and P's answer to it."""

from typing import Annotated

import msgspec

from connector.protocol.policy import PolicyPatch
from connector.protocol.terms import Decision, NonNegative, Role, Value

MAX_REPLACED_LEASES = 8


class LegEnvelope(Value, frozen=True):
    """Signed by the router (see ``connector.signing``), carried on every leg inside ``kv_transfer_params.backhaul``.

    ``expires_unix`` is coarse (minutes) and needs NTP only. ``reason_without_offer`` explains a missing offer.
    ``chain`` are the keyed conversation hashes to be echoed in the lease's ``LeaseOffer``. ``replaces``: on decode
    legs, leases of the same session whose history this turn has rewritten, so that no later turn will extend it.
    """

    leg: Role
    tenant: str
    session_id: str
    turn_id: str
    expires_unix: float
    traceparent: str = ""
    reason_without_offer: Decision | None = None
    policy: PolicyPatch | None = None
    chain: tuple[str, ...] = ()
    replaces: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_REPLACED_LEASES)] = ()


class LegReply(Value, frozen=True):
    """What P's connector puts under ``kv_transfer_params.backhaul`` in its response: D's offer and how P's leg went.

    ``diverged_at_token``: first token of the block in which prompt and offer differ; absent if one extends the other.
    """

    offer: str
    decision: Decision
    num_pulled_tokens: int
    lease_id: str
    diverged_at_token: NonNegative | None = None
