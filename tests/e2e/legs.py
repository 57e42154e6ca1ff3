"""Posts single legs straight to the engines, past the router, and compares answers by log-probabilities."""

import random
import time
import uuid
from typing import Any

import aiohttp
import msgspec

from connector.protocol import (
    FeedDelta,
    FeedSnapshot,
    FeedToRouter,
    LeaseEnded,
    LeaseOffer,
    LeaseRenewed,
    LegEnvelope,
    ReleaseLease,
    Role,
)
from tests.e2e.stack import Stack

TOLERANCE = 2e-4
"""Float noise between two ways of computing the same KV on this CPU; wrong KV differs by 1e-2 and more."""

VOCABULARY = range(300, 7900)


def random_tokens(count: int, seed: int | None = None) -> list[int]:
    source = random.Random(seed if seed is not None else uuid.uuid4().int)
    return [source.choice(VOCABULARY) for _ in range(count)]


class Answer:
    """One engine's answer to one leg."""

    def __init__(self, status: int, body: dict[str, Any], seconds: float) -> None:
        self.status = status
        self.body = body
        self.seconds = seconds

    @property
    def reply(self) -> dict[str, Any]:
        params: dict[str, Any] = self.body["kv_transfer_params"]["backhaul"]
        return params

    @property
    def token_ids(self) -> list[int]:
        ids: list[int] = self.body["choices"][0]["token_ids"]
        return ids

    @property
    def top_logprobs(self) -> dict[str, float]:
        """Of the first generated token, by ``token_id:<id>``: texts of two tokens may be the same half character."""
        first: dict[str, float] = self.body["choices"][0]["logprobs"]["top_logprobs"][0]
        return first

    def assert_same_as(self, other: "Answer") -> None:
        assert self.status == other.status == 200, (self.body, other.body)
        mine, theirs = sorted(self.top_logprobs.values()), sorted(other.top_logprobs.values())
        assert len(mine) == len(theirs) >= 5, (self.top_logprobs, other.top_logprobs)
        differences = [abs(a - b) for a, b in zip(mine, theirs, strict=True)]
        assert max(differences) < TOLERANCE, f"log-probabilities differ by {max(differences):.5f}: {mine} {theirs}"


class Legs:
    """A stand-in for the router that a test can make say anything."""

    def __init__(self, stack: Stack, tenant: str = "default") -> None:
        self._stack = stack
        self._tenant = tenant
        self._salt = uuid.uuid4().hex

    async def prefill(self, tokens: list[int], offer: str | None = None, **envelope: Any) -> Answer:
        params = {"do_remote_decode": True, "do_remote_prefill": False}
        return await self._post(self._stack.prefill_url, tokens, params, Role.PREFILL, offer, 1, envelope)

    async def decode(self, tokens: list[int], offer: str | None, max_tokens: int = 1, **envelope: Any) -> Answer:
        params = {"do_remote_decode": False, "do_remote_prefill": True}
        return await self._post(self._stack.decode_url, tokens, params, Role.DECODE, offer, max_tokens, envelope)

    async def recompute(self, url: str, tokens: list[int]) -> Answer:
        """The truth: nothing reused, in a cache namespace of its own."""
        return await self.post(url, tokens, {}, 1, salt=uuid.uuid4().hex)

    async def post(
        self, url: str, tokens: list[int], params: dict[str, Any], max_tokens: int, salt: str | None = None
    ) -> Answer:
        body = {
            "model": "tiny",
            "prompt": tokens,
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": 5,
            "ignore_eos": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "cache_salt": salt or self._salt,
            **({"kv_transfer_params": params} if params else {}),
        }
        async with self._stack.engine(url) as engine:
            started = time.perf_counter()
            response = await engine.post("/v1/completions", json=body)
            return Answer(response.status_code, response.json(), time.perf_counter() - started)

    async def _post(
        self,
        url: str,
        tokens: list[int],
        params: dict[str, Any],
        role: Role,
        offer: str | None,
        max_tokens: int,
        envelope: dict[str, Any],
    ) -> Answer:
        facts = {"session_id": uuid.uuid4().hex, "turn_id": str(uuid.uuid4()), "tenant": self._tenant} | envelope
        signed = self._stack.fleet_key.sign("envelope", LegEnvelope(leg=role, expires_unix=time.time() + 600, **facts))
        return await self.post(url, tokens, {**params, "backhaul": {"envelope": signed, "offer": offer}}, max_tokens)

    async def turn(
        self, tokens: list[int], offer: str | None, feed: "Feed", max_tokens: int = 3, session_id: str | None = None
    ) -> tuple[Answer, Answer, LeaseOffer]:
        """Both legs and the lease that D granted."""
        facts = {"turn_id": str(uuid.uuid4()), "session_id": session_id or uuid.uuid4().hex}
        first = await self.prefill(tokens, offer, **facts)
        assert first.status == 200, first.body
        second = await self.decode(tokens, first.reply["offer"], max_tokens, **facts)
        assert second.status == 200, second.body
        return first, second, await feed.lease_of_turn(facts["turn_id"])


class Feed:
    """D's lease feed, followed like a router does."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._decoder = msgspec.msgpack.Decoder(FeedToRouter)
        self.leases: dict[str, LeaseOffer] = {}
        self.ended: dict[str, LeaseEnded] = {}

    async def __aenter__(self) -> "Feed":
        self._session = aiohttp.ClientSession()
        headers = {"Authorization": f"Bearer {self._stack.secret('feed-token')}"}
        self._socket = await self._session.ws_connect(self._stack.decode_feed_url, headers=headers, max_msg_size=0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._socket.close()
        await self._session.close()

    async def lease_of_turn(self, turn_id: str) -> LeaseOffer:
        while True:
            for offer in self.leases.values():
                if offer.lease.turn_id == turn_id:
                    return offer
            await self._take()

    async def renewed_offer(self, lease_id: str, old: str) -> str:
        """The lease's offer once it is another than ``old``."""
        while self.leases[lease_id].offer == old:
            await self._take()
        return self.leases[lease_id].offer

    async def wait_ended(self, lease_id: str) -> LeaseEnded:
        while lease_id not in self.ended:
            await self._take()
        return self.ended[lease_id]

    async def release(self, key: str) -> None:
        await self._socket.send_bytes(msgspec.msgpack.encode(ReleaseLease(command_id=str(uuid.uuid4()), key=key)))

    async def _take(self) -> None:
        frame = await self._socket.receive_bytes(timeout=20)
        message = self._decoder.decode(frame)
        if isinstance(message, FeedSnapshot):
            self.leases |= {offer.lease.lease_id: offer for offer in message.leases}
        elif isinstance(message, FeedDelta):
            self._apply(message.change)

    def _apply(self, change: object) -> None:
        if isinstance(change, LeaseOffer):
            self.leases[change.lease.lease_id] = change
        elif isinstance(change, LeaseRenewed):
            held = self.leases[change.lease.lease_id]
            self.leases[change.lease.lease_id] = LeaseOffer(lease=held.lease, offer=change.offer, chain=held.chain)
        elif isinstance(change, LeaseEnded):
            self.ended[change.lease_id] = change
            self.leases.pop(change.lease_id, None)
