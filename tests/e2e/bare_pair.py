"""Turns on a bare P-D pair, with what each leg decided and the log-probabilities that it answered with.

No router: envelopes are signed here, and D's offers are read from its engine link.
"""

import secrets
import socket
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from connector.framing import FrameDecoder, encode_frame
from connector.protocol import (
    EngineEvent,
    EngineToAgent,
    LeaseOffer,
    LegDecided,
    LegEnvelope,
    PolicyApplied,
    PolicyValues,
    Role,
    SetPolicy,
)
from connector.signing import FleetKey
from deploy.local.engines import SERVED_MODEL

TIMEOUT_SECONDS = 60
NUM_TOP = 5
LEASE_NOTICE_SECONDS = 10.0
"""A lease is on the link within milliseconds of the answer; longer than this means that none was granted."""

TopLogprobs = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """``prefill`` and ``decode``: the first token as P and as D computed it. ``held``: D's offer for the next turn."""

    prefill_decision: str
    decode_decision: str
    num_prefill_pulled: int
    num_decode_pulled: int
    prefill: TopLogprobs
    decode: TopLogprobs
    tokens: list[int]
    held: str | None


class EngineEar:
    """An engine's link, at the agent's end: what it decided and granted, and the policy that it obeys."""

    def __init__(self, path: Path) -> None:
        self._link = socket.socket(socket.AF_UNIX)
        self._link.connect(str(path))
        self._frames: FrameDecoder[Any] = FrameDecoder(EngineToAgent)
        self._pending: deque[Any] = deque()

    def close(self) -> None:
        self._link.close()

    def set_policy(self, revision: int, values: PolicyValues) -> None:
        """Returns once the engine has said that it is in force."""
        self._link.sendall(encode_frame(SetPolicy(revision=revision, values=values)))
        wanted = (message for message in self._messages(TIMEOUT_SECONDS) if isinstance(message, PolicyApplied))
        assert next(wanted, None) is not None, "the engine never acknowledged the policy"

    def heard(self, turn_id: str) -> tuple[LegDecided, str | None]:
        """What the engine's leg of the turn decided, and its lease if it granted one."""
        leg = next(filter(None, (_leg_of(message, turn_id) for message in self._messages(TIMEOUT_SECONDS))), None)
        assert leg is not None, "the engine never said what it decided"
        for message in self._messages(LEASE_NOTICE_SECONDS):
            if isinstance(message, LeaseOffer) and message.lease.turn_id == turn_id:
                return leg, message.offer
        return leg, None

    def _messages(self, seconds: float) -> Iterator[Any]:
        """As they come, until none has come for that long."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            if self._pending:
                yield self._pending.popleft()
                continue
            self._link.settimeout(remaining)
            try:
                self._pending.extend(self._frames.feed(self._link.recv(1 << 20)))
            except TimeoutError:
                return


def _leg_of(message: Any, turn_id: str) -> LegDecided | None:
    event = message.event if isinstance(message, EngineEvent) else None
    return event if isinstance(event, LegDecided) and event.turn_id == turn_id else None


class BarePair:
    def __init__(self, prefill_url: str, decode_url: str, key: FleetKey, ear: EngineEar) -> None:
        self._prefill_url, self._decode_url = prefill_url, decode_url
        self._key = key
        self._ear = ear
        self._http = httpx.Client(timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        self._http.close()

    def turn(
        self,
        prompt: list[int],
        held: str | None,
        *,
        num_reply: int = 1,
        decode_prompt: list[int] | None = None,
        during_decode: AbstractContextManager[None] | None = None,
    ) -> Turn:
        """``decode_prompt``: what D is asked instead, as after a router or template that P and D disagree about.

        ``during_decode``: holds from before D is asked until it has answered.
        """
        turn_id = str(uuid.uuid4())
        to_prefill: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
        to_prefill |= {"backhaul": self._signed(Role.PREFILL, turn_id, held)}
        first = self._complete(self._prefill_url, prompt, 1, kv_transfer_params=to_prefill)
        reply = first["kv_transfer_params"]["backhaul"] if first["kv_transfer_params"] else {}
        to_decode: dict[str, Any] = {"do_remote_decode": False, "do_remote_prefill": True}
        to_decode |= {"backhaul": self._signed(Role.DECODE, turn_id, reply.get("offer"))}
        asked = prompt if decode_prompt is None else decode_prompt
        with during_decode or nullcontext():
            second = self._complete(self._decode_url, asked, num_reply, kv_transfer_params=to_decode)
        leg, offer = self._ear.heard(turn_id)
        return Turn(
            prefill_decision=str(reply.get("decision", "")),
            decode_decision=str(leg.decision),
            num_prefill_pulled=int(reply.get("num_pulled_tokens", 0)),
            num_decode_pulled=leg.num_pulled_tokens,
            prefill=_top_of_first(first),
            decode=_top_of_first(second),
            tokens=second["choices"][0]["token_ids"],
            held=offer,
        )

    def recomputed(self, prompt: list[int]) -> TopLogprobs:
        """Of the first token, with nothing reused: by P, under a salt of its own."""
        return _top_of_first(self._complete(self._prefill_url, prompt, 1, cache_salt=secrets.token_hex(8)))

    def _complete(self, url: str, prompt: list[int], num_tokens: int, **more: Any) -> Any:
        request = {
            "model": SERVED_MODEL,
            "prompt": prompt,
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "logprobs": NUM_TOP,
            "return_tokens_as_token_ids": True,
            **more,
        }
        response = self._http.post(f"{url}/v1/completions", json=request)
        response.raise_for_status()
        return response.json()

    def _signed(self, leg: Role, turn_id: str, offer: str | None) -> dict[str, Any]:
        expires = time.time() + 600
        envelope = LegEnvelope(leg=leg, tenant="e2e", session_id=turn_id, turn_id=turn_id, expires_unix=expires)
        return {"envelope": self._key.sign("envelope", envelope), "offer": offer}


def _top_of_first(answer: Any) -> TopLogprobs:
    top: TopLogprobs = answer["choices"][0]["logprobs"]["top_logprobs"][0]
    return top


def difference(one: TopLogprobs, other: TopLogprobs) -> float:
    """Largest difference between two lists of top log-probabilities; infinite when they name different tokens."""
    if one.keys() != other.keys():
        return float("inf")
    return max(abs(one[token] - other[token]) for token in one)
