"""Posts single legs to the running engines, as the router would, and hands back answers with what the engines said."""

import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from connector.protocol import (
    LeaseOffer,
    LegDecided,
    LegEnvelope,
    PolicyPatch,
    PolicyValues,
    Role,
)
from connector.signing import FleetKey
from deploy.local.engines import SERVED_MODEL, Engine
from deploy.local.layout import Layout
from tests.load.correctness.comparison import NUM_TOP, Answer
from tests.load.correctness.engines import ADAPTERS, Trio
from tests.load.correctness.link_follower import LinkFollower

TIMEOUT_SECONDS = 300
MODELS = (SERVED_MODEL, *ADAPTERS)
PATIENT = PolicyValues(kv_lease_duration=900, kv_pull_deadline=120, pinned_kv_limit=1.0)
"""No pull or handoff ends because the machine is busy: every decision follows from what the run itself did."""

Tokens = tuple[int, ...]


class LegRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``offer``: the source's signed token, or ``None``."""

    prompt: Tokens
    adapter: int
    tenant: str
    session_id: str
    turn_id: str
    offer: str | None
    policy: PolicyPatch | None = None
    num_reply_tokens: int = 1
    is_streamed: bool = False


class Fleet:
    """Connected to all three engines and their links while the context lasts."""

    def __init__(self, trio: Trio, layout: Layout) -> None:
        self.trio = trio
        self._layout = layout
        self._key = FleetKey.load(layout.run / "fleet.key")
        self._engines = (trio.plain_prefill, trio.caching_prefill, trio.decode)
        self._links = {engine.name: LinkFollower() for engine in self._engines}
        self._num_recomputed = 0

    async def __aenter__(self) -> "Fleet":
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        # A connection each: the engines close idle ones just when they might be used again.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._http = aiohttp.ClientSession(timeout=timeout, connector=connector)
        for engine in self._engines:
            await self._links[engine.name].connect(Path(self._layout.link_path(engine.name)))
            await self._links[engine.name].set_policy(PATIENT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in self._links.values():
            await link.close()
        await self._http.close()

    def link(self, engine: Engine) -> LinkFollower:
        return self._links[engine.name]

    @property
    def decode_link(self) -> LinkFollower:
        return self.link(self.trio.decode)

    def forget(self, ids: Iterable[str]) -> None:
        """Turns and leases that nobody will ask for any more."""
        for link in self._links.values():
            link.forget(*ids)

    def prefill_engine(self, *, caches: bool) -> Engine:
        return self.trio.caching_prefill if caches else self.trio.plain_prefill

    async def prefill(self, engine: Engine, leg: LegRequest) -> tuple[Answer, LegDecided]:
        params = {"do_remote_decode": True, "do_remote_prefill": False, "backhaul": self._signed(Role.PREFILL, leg)}
        answer = await self._post(engine, leg.prompt, leg.adapter, leg.tenant, 1, params)
        return answer, await self.link(engine).decided(leg.turn_id)

    async def decode(self, leg: LegRequest) -> tuple[Answer, LegDecided, LeaseOffer]:
        params = {"do_remote_decode": False, "do_remote_prefill": True, "backhaul": self._signed(Role.DECODE, leg)}
        post = self._post_streamed if leg.is_streamed else self._post
        answer = await post(self.trio.decode, leg.prompt, leg.adapter, leg.tenant, leg.num_reply_tokens, params)
        lease = await self.decode_link.lease_of_turn(leg.turn_id)
        return answer, await self.decode_link.decided(leg.turn_id), lease

    async def recompute(self, prompt: Tokens, adapter: int, num_reply_tokens: int = 1) -> Answer:
        """The truth: no transfer, and a cache namespace that nothing else has. The engines take turns."""
        self._num_recomputed += 1
        engine = self._engines[self._num_recomputed % len(self._engines)]
        return await self._post(engine, prompt, adapter, uuid.uuid4().hex, num_reply_tokens, None)

    async def plain(self, engine: Engine, prompt: Tokens, adapter: int, tenant: str) -> Answer:
        """Without any transfer params, but in the tenant's own cache namespace: finds what transfers left in there."""
        return await self._post(engine, prompt, adapter, tenant, 1, None)

    async def fill(self, engine: Engine, prompt: Tokens) -> None:
        """A stranger's request, for the sake of the blocks that it takes."""
        await self._post(engine, prompt, 0, uuid.uuid4().hex, 1, None)

    def _signed(self, role: Role, leg: LegRequest) -> dict[str, Any]:
        envelope = LegEnvelope(
            leg=role,
            tenant=leg.tenant,
            session_id=leg.session_id,
            turn_id=leg.turn_id,
            expires_unix=time.time() + 600,
            policy=leg.policy,
        )
        return {"envelope": self._key.sign("envelope", envelope), "offer": leg.offer}

    async def _post(
        self, engine: Engine, prompt: Tokens, adapter: int, salt: str, num_tokens: int, params: dict[str, Any] | None
    ) -> Answer:
        body = _body(prompt, adapter, salt, num_tokens, params)
        async with self._http.post(f"{engine.url}/v1/completions", json=body) as response:
            content = await response.json()
            if response.status != 200:
                raise RuntimeError(f"{engine.name} answered {response.status}: {str(content)[:300]}")
        choice = content["choices"][0]
        backhaul = (content.get("kv_transfer_params") or {}).get("backhaul", {})
        return Answer(token_ids=tuple(choice["token_ids"]), top=_top(choice), backhaul=backhaul)

    async def _post_streamed(
        self, engine: Engine, prompt: Tokens, adapter: int, salt: str, num_tokens: int, params: dict[str, Any] | None
    ) -> Answer:
        body = {**_body(prompt, adapter, salt, num_tokens, params), "stream": True}
        token_ids: list[int] = []
        top: list[dict[int, float]] = []
        async with self._http.post(f"{engine.url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                for choice in msgspec.json.decode(line[6:]).get("choices", []):
                    token_ids += choice.get("token_ids") or []
                    top += _top(choice)
        return Answer(token_ids=tuple(token_ids), top=tuple(top))


def _body(prompt: Tokens, adapter: int, salt: str, num_tokens: int, params: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "model": MODELS[adapter],
        "prompt": list(prompt),
        "max_tokens": num_tokens,
        "temperature": 0,
        "logprobs": NUM_TOP,
        "ignore_eos": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "cache_salt": salt,
        **({"kv_transfer_params": params} if params else {}),
    }


def _top(choice: dict[str, Any]) -> tuple[dict[int, float], ...]:
    """vLLM names tokens ``token_id:<id>`` when asked to, so that no two share a key."""
    logprobs = choice.get("logprobs")
    if not logprobs:
        return ()
    return tuple(
        {int(name.partition(":")[2]): value for name, value in candidates.items()}
        for candidates in logprobs["top_logprobs"]
    )
