"""Legs of requests: opened from what came in signed, matched against the prompt, written back as what vLLM may use."""

import logging
from collections import Counter
from typing import Any

from connector.engine.adapters import AdapterStamps
from connector.engine.cache_shape import CacheShape
from connector.engine.digests import DigestChain
from connector.engine.fingerprint import is_described, multimodal_extra, request_seed
from connector.engine.legs import Leg, read_envelope, read_offer
from connector.engine.matching import Match, PromptFacts, match_decode, match_prefill
from connector.engine.offers import KvOffer
from connector.engine.peers import UNKNOWN_ENGINE, PeerBook
from connector.engine.policy import for_request
from connector.engine.refusals import Reader, Refusal, refusal
from connector.protocol import Decision, PolicyValues, Role
from connector.signing import FleetKey, FleetKeySource, ForeignVersionError, InvalidTokenError

logger = logging.getLogger("vllm.backhaul.matcher")

REMOTE_FIELDS = (
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    "remote_num_tokens",
    "remote_block_ids",
)


class LegMatcher:
    """Fixed facts of this engine that every match needs; holds no request's state."""

    def __init__(
        self,
        *,
        fleet_key: FleetKeySource,
        role: Role,
        fingerprint: bytes,
        block_size: int,
        shape: CacheShape,
        peers: PeerBook | None = None,
    ) -> None:
        self._fleet_key = fleet_key
        self._role = role
        self._fingerprint = fingerprint
        self._block_size = block_size
        self._peers = peers or PeerBook()
        self.reader = Reader(role=role, fingerprint=fingerprint, block_size=block_size)
        self.shape = shape
        self._adapters = AdapterStamps()
        self.num_refused: Counter[str] = Counter()

    def open(self, request: Any, params: dict[str, Any], policy: PolicyValues) -> Leg | None:
        """The leg of a request with a valid envelope. Afterwards ``params`` name a verified source, or none."""
        clear_remote_fields(params)
        key = self._fleet_key.current
        try:
            envelope = read_envelope(params, key, self._role)
        except InvalidTokenError as error:
            logger.warning("Request %s has no usable envelope (%s); nothing is reused.", request.request_id, error)
            return None
        leg = Leg(role=self._role, envelope=envelope, policy=for_request(policy, envelope.policy), key=key)
        leg.num_prompt_tokens = request.num_prompt_tokens
        can_read = self._can_read and self.can_digest(request) and not request.skip_reading_prefix_cache
        leg.refusal = self._take_offer(leg, params, key, can_read=can_read)
        if leg.source is not None:
            params.update(leg.source.endpoint_params())
        return leg

    def _take_offer(self, leg: Leg, params: dict[str, Any], key: FleetKey, *, can_read: bool) -> Decision | None:
        """Sets the leg's offer, or returns the reason why there is none, in design.md's order of reasons."""
        if self._role is Role.PREFILL and not leg.policy.bidirectional_kv_xfer:
            return Decision.DISABLED
        try:
            offer = read_offer(params, key)
        except InvalidTokenError as error:
            is_foreign = isinstance(error, ForeignVersionError)
            decision = Decision.UNSUPPORTED if is_foreign else Decision.REJECTED
            return self._refuse(leg, Refusal(decision, error.reason))
        if offer is None:
            return leg.envelope.reason_without_offer or self._reason_without_offer()
        against = refusal(offer, self.reader, tenant=leg.envelope.tenant, key=key, peers=self._peers)
        if not can_read and (against is None or against.decision is Decision.SOURCE_LOST):
            against = Refusal(Decision.UNSUPPORTED, "kind_of_model" if not self._can_read else "kind_of_request")
        if against is not None:
            if self._role is Role.DECODE and _may_be_told(against):
                leg.refused = offer
            return self._refuse(leg, against, offer.engine)
        leg.offer = offer
        return None

    def source_of(self, params: dict[str, Any]) -> KvOffer | None:
        """The offer of a known engine that these params carry, whatever became of its leg."""
        try:
            offer = read_offer(params, self._fleet_key.current)
        except InvalidTokenError:
            return None
        if offer is None or offer.role is self._role or self._peers.reason_against(offer.engine, offer.incarnation):
            return None
        return offer

    @property
    def can_be_read(self) -> bool:
        """Whether what this engine holds of such a model can be exact for the engine that it would offer it to."""
        return self.shape.can_hand_over if self._role is Role.PREFILL else self.shape.can_be_reused

    @property
    def _can_read(self) -> bool:
        return self.shape.can_be_reused if self._role is Role.PREFILL else self.shape.can_hand_over

    def _reason_without_offer(self) -> Decision:
        """An engine offers nothing of a model that its peer could not read, so the reader says why there is none."""
        return Decision.NO_PLACEMENT if self._can_read else Decision.UNSUPPORTED

    def _refuse(self, leg: Leg, against: Refusal, engine: str = "") -> Decision:
        self.num_refused[against.reason] += 1
        logger.warning(
            "Turn %s: the offer of %s is refused (%s).",
            leg.envelope.turn_id,
            engine or "an unverified sender",
            against.reason,
        )
        return against.decision

    def match(self, request: Any, leg: Leg, num_local_tokens: int) -> Match:
        if request.skip_reading_prefix_cache or not self.can_digest(request):
            return Match(decision=leg.refusal or Decision.UNSUPPORTED)
        if leg.offer is None:
            return Match(decision=leg.refusal or Decision.NO_PLACEMENT)
        key = leg.key or self._fleet_key.current
        chain = self._chain(request, leg, request.num_prompt_tokens, key, leg.offer.digest_key_id)
        prompt = PromptFacts(
            num_tokens=request.num_prompt_tokens,
            num_local_tokens=num_local_tokens,
            block_size=self._block_size,
            digests=chain.digests,
            tail_of=lambda num_tokens: chain.tail(request.all_token_ids, num_tokens),
        )
        if self._role is Role.PREFILL:
            return match_prefill(leg.offer, prompt, leg.policy, self.shape)
        return match_decode(leg.offer, prompt, self.shape)

    def can_digest(self, request: Any) -> bool:
        """Whether digests tell all that this request's KV depends on; else it takes nothing and offers nothing."""
        return is_described(request) and self._adapters.of(request.lora_request) is not None

    def digest(self, request: Any, leg: Leg, num_tokens: int, key_id: str = "") -> DigestChain:
        """The leg's digests for an offer of its own: keyed with the key that signs now, whatever the matching used.

        Under ``key_id``, if given; raises ``KeyError`` if that key is gone.
        """
        key = self._fleet_key.current
        return self._chain(request, leg, num_tokens, key, key_id or key.active_id)

    def _chain(self, request: Any, leg: Leg, num_tokens: int, key: FleetKey, key_id: str) -> DigestChain:
        """The leg's digests under that key, grown to ``num_tokens``: the prompt at matching, the reply at the end."""
        if leg.chain is None or leg.digest_key_id != key_id:
            extra = (lambda start, end: multimodal_extra(request, start, end)) if request.mm_features else None
            seed = request_seed(self._fingerprint, request, self._adapters.of(request.lora_request) or b"")
            leg.chain = DigestChain(key.digest_key(key_id), seed, self._block_size, extra)
            leg.digest_key_id = key_id
        leg.chain.extend(request.all_token_ids, num_tokens)
        return leg.chain

    def write_back(self, leg: Leg, match: Match, params: dict[str, Any], *, is_fault: bool = False) -> None:
        """Leaves exactly what vLLM may use.

        P without a pull names no blocks, so D hears nothing. D without a pull names one, on which vLLM only notifies P,
        so that P frees its blocks at once. After a fault of ours the source is notified in both directions.
        """
        if leg.source is None:
            return
        if leg.offer is not None and match.num_pull_tokens > 0:
            params.update(leg.offer.remote_params(match.num_blocks, match.num_verified_tokens))
            if len(self.shape.groups) > 1 or not self.shape.is_plain:
                cut = self.shape.cut(leg.offer.block_ids, leg.offer.num_tokens, match.num_verified_tokens)
                params["remote_block_ids"] = cut
        elif is_fault or self._role is Role.DECODE:
            params.update(leg.source.remote_params(1, 0))
        else:
            params.update(leg.source.endpoint_params())


def _may_be_told(against: Refusal) -> bool:
    """A source that is up and known waits for its reader; one of our own role has none, and a stranger isn't called."""
    is_there = against.decision is not Decision.SOURCE_LOST
    return is_there and against.reason not in ("same_role", UNKNOWN_ENGINE)


def clear_remote_fields(params: dict[str, Any]) -> None:
    """Whatever a caller wrote there is not to be believed; the verified offer fills it in."""
    params.update(dict.fromkeys(REMOTE_FIELDS))
    params.pop("_remote_blocks_processed", None)
