"""A client of the router that changes its history, and the truth to compare each of its answers with."""

import secrets
import uuid
from typing import Any

from tests.e2e.legs import TOLERANCE
from tests.e2e.stack import Stack, eventually

GREEDY = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}

VARIED = {"temperature": 1.0, "seed": 7}
"""Greedy text of random weights repeats one token, so that a stripped reply would still begin like the whole one."""

REUSING = ("pulled", "trimmed_prefix_diverged")
"""A reply's text may be cut into other tokens than those that made it: a continued turn may be trimmed at its end."""


def top_logprobs(path: str, body: dict[str, Any]) -> list[list[float]]:
    """Of every generated token, highest first."""
    logprobs = body["choices"][0]["logprobs"]
    if path == "/completions":
        return [sorted(top.values(), reverse=True) for top in logprobs["top_logprobs"]]
    return [
        sorted((top["logprob"] for top in position["top_logprobs"]), reverse=True) for position in logprobs["content"]
    ]


def assert_same(path: str, mine: dict[str, Any], truth: dict[str, Any]) -> None:
    """Greedy tokens and their best log-probabilities, up to one that the truth itself could have chosen otherwise."""
    tokens = zip(mine["choices"][0]["token_ids"], truth["choices"][0]["token_ids"], strict=True)
    tops = zip(top_logprobs(path, mine), top_logprobs(path, truth), strict=True)
    for (token, true_token), (one, other) in zip(tokens, tops, strict=True):
        assert len(one) >= 3
        for a, b in zip(one[:3], other[:3], strict=True):
            assert abs(a - b) < TOLERANCE, (one, other)
        if token != true_token:
            assert other[0] - other[1] < 2 * TOLERANCE, "another token although the best one was clear"
            return


class RoutedClient:
    """Every turn goes through the router; ``truth`` asks an engine alone, in a cache namespace of its own."""

    def __init__(self, stack: Stack, messages: list[dict[str, Any]] | None = None, key: str | None = None) -> None:
        self.stack = stack
        self.key = key or uuid.uuid4().hex
        self.messages = messages or []
        self.num_turns = 0

    async def say(self, text: str, *, is_checked: bool = True, **fields: Any) -> dict[str, Any]:
        """A chat turn; both messages are appended. Its answer equals that of an engine which reuses nothing."""
        self.messages.append({"role": "user", "content": text})
        request = {"messages": list(self.messages), "max_tokens": 4, "logprobs": True, "top_logprobs": 5, **fields}
        body = await self._ask("/chat/completions", request, is_checked=is_checked)
        self.messages.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
        return body

    async def complete(self, tokens: list[int], *, is_checked: bool = True, **fields: Any) -> dict[str, Any]:
        # By text two candidates may share a key of the answer (halves of a character), and one would be lost.
        named_by_id = {"logprobs": 5, "return_tokens_as_token_ids": True}
        request = {"prompt": tokens, "max_tokens": 4, **named_by_id, **fields}
        return await self._ask("/completions", request, is_checked=is_checked)

    async def _ask(self, path: str, request: dict[str, Any], *, is_checked: bool) -> dict[str, Any]:
        request = {"model": "tiny", **GREEDY, **request}
        async with self.stack.client() as client:
            response = await client.post(path, json={**request, "conversation_id": self.key})
        assert response.status_code == 200, response.text
        self.num_turns += 1
        body: dict[str, Any] = response.json()
        if is_checked:
            async with self.stack.engine(self.stack.decode_url) as engine:
                alone = await engine.post(f"/v1{path}", json={**request, "cache_salt": secrets.token_hex(16)})
            assert_same(path, body, alone.json())
        return body

    async def turns(self) -> list[dict[str, Any]]:
        """All turns, once the router and both engines have reported each; the oldest first."""

        async def whole() -> list[dict[str, Any]]:
            newest = (await self.stack.get("/sessions/"))["results"][0]
            rows = await self.stack.rows(f"/sessions/{newest['id']}/turns/")
            is_whole = all(row["status"] != "running" and row["prefill_decision"] for row in rows)
            return sorted(rows, key=lambda row: row["index"]) if is_whole and len(rows) == self.num_turns else []

        return await eventually(whole, within_seconds=15, what=f"{self.num_turns} whole turns in REST")
