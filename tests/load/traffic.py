"""Requests at a bare pair, many at a time: turns over P and D (signed for ours, in the clear for stock), plain ones."""

import asyncio
import time
import uuid
from random import Random
from typing import Any

import aiohttp

from connector.protocol import LegEnvelope, Role
from connector.signing import FleetKey
from deploy.local.engines import SERVED_MODEL, Engine
from tests.load.legs import NO_REMOTE, random_tokens

TIMEOUT = aiohttp.ClientTimeout(total=120)


class Traffic:
    """``key``: the fleet key of a pair of ours; ``None`` for a stock pair."""

    def __init__(self, pair: list[Engine], key: FleetKey | None, http: aiohttp.ClientSession, seed: int) -> None:
        self.prefill, self.decode = pair
        self._key = key
        self._http = http
        self._source = Random(seed)

    async def plain(self, num_prompt: int, num_reply: int, engine: Engine | None = None) -> float:
        """Seconds of one request that no other engine takes part in."""
        start = time.perf_counter()
        await self._complete(engine or self.decode, random_tokens(num_prompt, self._source), num_reply, None)
        return time.perf_counter() - start

    async def turn(self, num_prompt: int, num_reply: int) -> None:
        """P computes the prompt, D pulls it and replies."""
        tokens, turn_id = random_tokens(num_prompt, self._source), str(uuid.uuid4())
        to_prefill: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
        to_prefill |= self._signed(Role.PREFILL, turn_id, None) if self._key is not None else NO_REMOTE
        answer = (await self._complete(self.prefill, tokens, 1, to_prefill))["kv_transfer_params"]
        if self._key is not None:
            answer = {
                "do_remote_decode": False,
                "do_remote_prefill": True,
                **self._signed(Role.DECODE, turn_id, answer["backhaul"]["offer"]),
            }
        await self._complete(self.decode, tokens, num_reply, answer)

    async def leave_lease(self, num_prompt: int) -> None:
        """A turn that D computes by itself, after which it holds the blocks."""
        params: dict[str, Any] = {"do_remote_decode": False, "do_remote_prefill": True}
        params |= self._signed(Role.DECODE, str(uuid.uuid4()), None)
        await self._complete(self.decode, random_tokens(num_prompt, self._source), 1, params)

    def _signed(self, leg: Role, turn_id: str, offer: str | None) -> dict[str, Any]:
        assert self._key is not None
        envelope = LegEnvelope(
            leg=leg, tenant="bench", session_id=turn_id, turn_id=turn_id, expires_unix=time.time() + 600
        )
        return {"backhaul": {"envelope": self._key.sign("envelope", envelope), "offer": offer}}

    async def _complete(self, engine: Engine, tokens: list[int], num_reply: int, params: Any) -> Any:
        request = {
            "model": SERVED_MODEL,
            "prompt": tokens,
            "max_tokens": num_reply,
            "temperature": 0,
            "ignore_eos": True,
            **({"kv_transfer_params": params} if params is not None else {}),
        }
        async with self._http.post(f"{engine.url}/v1/completions", json=request, timeout=TIMEOUT) as response:
            response.raise_for_status()
            return await response.json()


async def rate(one: Any, *, concurrency: int, count: int) -> float:
    """Completions per second of ``count`` calls of ``one``, that many under way at a time."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await one()

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
    return count / (time.perf_counter() - start)
