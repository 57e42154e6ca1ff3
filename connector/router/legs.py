"""Builds the two legs of a turn: bodies, signed envelopes, headers."""

import time
from typing import Any

import msgspec

from connector.protocol import Decision, LegEnvelope, PolicyPatch, Role
from connector.router.requests import TurnRequest
from connector.router.requests.parsing import PREFILL_CHANGES
from connector.signing import FleetKeySource

ENVELOPE_SECONDS = 600.0

_encode = msgspec.json.Encoder().encode


class BackhaulParams(msgspec.Struct, frozen=True):
    """``offer`` is the other engine's signed token, passed on unread."""

    envelope: str
    offer: str | None


class TransferParams(msgspec.Struct, frozen=True):
    """vLLM's own names; the connector fills in the remote fields itself."""

    do_remote_decode: bool
    do_remote_prefill: bool
    backhaul: BackhaulParams
    remote_engine_id: None = None
    remote_block_ids: None = None
    remote_host: None = None
    remote_port: None = None


class LegSigner:
    """Signs what every leg carries, so that engines take orders from the fleet's routers only."""

    def __init__(self, key: FleetKeySource) -> None:
        self._key = key

    def sign(
        self,
        leg: Role,
        *,
        tenant: str,
        session_id: str,
        turn_id: str,
        traceparent: str,
        reason: Decision | None,
        patch: PolicyPatch | None,
        chain: tuple[str, ...],
        replaces: tuple[str, ...] = (),
    ) -> str:
        """The envelope token; valid for ten minutes by the engines' clocks."""
        envelope = LegEnvelope(
            leg=leg,
            tenant=tenant,
            session_id=session_id,
            turn_id=turn_id,
            expires_unix=time.time() + ENVELOPE_SECONDS,
            traceparent=traceparent,
            reason_without_offer=reason,
            policy=patch,
            chain=chain,
            replaces=replaces,
        )
        return self._key.current.sign("envelope", envelope)


def prefill_body(request: TurnRequest, salt: str, envelope: str, offer: str | None) -> bytes:
    """Exactly one token, not streamed; everything that shapes the prompt is the client's own bytes."""
    changes = PREFILL_CHANGES[request.endpoint]
    body: dict[str, Any] = {k: v for k, v in request.fields.items() if k not in changes.dropped}
    body.update(changes.put)
    body["cache_salt"] = salt
    body["kv_transfer_params"] = TransferParams(True, False, BackhaulParams(envelope, offer))
    return _encode(body)


def decode_body(
    request: TurnRequest, salt: str, envelope: str | None, offer: str | None, response_id: str = ""
) -> bytes:
    """The client's request as it came, stripped, with the transfer's params; without an envelope no params either.

    ``response_id``: what the engine shall call its response, where the API lets a later request name it.
    """
    body: dict[str, Any] = dict(request.fields)
    body["cache_salt"] = salt
    if response_id:
        body["request_id"] = response_id
    if envelope is not None:
        body["kv_transfer_params"] = TransferParams(False, True, BackhaulParams(envelope, offer))
    return _encode(body)


def leg_headers(base: bytes, engine_key: str, turn_id: str, traceparent: str, tracestate: str) -> bytes:
    """The client's end-to-end headers plus the leg's own, rendered; the client's key never goes on."""
    own = f"authorization: Bearer {engine_key}\r\nx-request-id: {turn_id}\r\ntraceparent: {traceparent}\r\n"
    if tracestate:
        own += f"tracestate: {tracestate}\r\n"
    return base + own.encode(errors="surrogateescape")
