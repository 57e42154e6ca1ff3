"""Two prefill and two decode engines behind one router: where turns go, what they reuse, and what a lost engine costs.

The stack is this module's own; an operator's key reads each choice from the router's header.
"""

import os
import re
import secrets
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.own_stack import own_stack
from tests.e2e.routed import REUSING, assert_same
from tests.e2e.stack import Stack, eventually

PORT_OFFSET = 23000
UP_TIMEOUT_SECONDS = 900

pytestmark = pytest.mark.timeout(1000)
"""Four engines start on two cores before the first test."""
SYSTEM = "You keep the records of a small port. " + " ".join(
    f"Berth {number} takes ships of class {number % 7}." for number in range(40)
)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """``BACKHAUL_SEVERAL_RUN_DIR`` names a running stack at these ports to use instead of an own one."""
    if given := os.environ.get("BACKHAUL_SEVERAL_RUN_DIR"):
        yield Stack(Path(given), PORT_OFFSET)
        return
    with own_stack(".run-several", PORT_OFFSET, UP_TIMEOUT_SECONDS, P="2", D="2") as own:
        yield own


@pytest.fixture(scope="module")
def key(stack: Stack) -> str:
    """An operator's, known to the router."""
    headers = {"Authorization": f"Bearer {stack.secret('admin-token')}"}
    body = {"tenant": "default", "name": f"several-{uuid.uuid4().hex}", "operator": True}
    made = httpx.post(f"{stack.controlplane_url}/api/v1/router-keys/", headers=headers, json=body, timeout=30)
    assert made.status_code == 201, made.text
    return str(made.json()["secret"])


@dataclass
class Talk:
    """A conversation; ``homes`` are the decode engines of its turns, ``turn_ids`` the turns, the oldest first."""

    stack: Stack
    key: str
    messages: list[dict[str, str]] = field(default_factory=list)
    homes: list[str] = field(default_factory=list)
    prefilled_by: list[str] = field(default_factory=list)
    turn_ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages.append({"role": "system", "content": SYSTEM + uuid.uuid4().hex})

    async def say(self, text: str) -> dict[str, Any]:
        """One turn that must succeed at the first try of the client."""
        self.messages.append({"role": "user", "content": text})
        headers = {"Authorization": f"Bearer {self.key}"}
        async with httpx.AsyncClient(base_url=f"{self.stack.router_url}/v1", headers=headers, timeout=120) as client:
            response = await client.post("/chat/completions", json=self._request())
        assert response.status_code == 200, response.text
        self.turn_ids.append(response.headers["X-Request-Id"])
        chosen = dict(re.findall(r"(decode|prefill)=(\S+)", response.headers["X-Backhaul-Choice"]))
        self.homes.append(chosen["decode"])
        self.prefilled_by.append(chosen.get("prefill", ""))
        body: dict[str, Any] = response.json()
        self.messages.append({"role": "assistant", "content": body["choices"][0]["message"]["content"]})
        return body

    async def check(self, body: dict[str, Any]) -> None:
        """The last answer equals that of an engine that reuses nothing."""
        request = {**self._request(), "messages": self.messages[:-1], "cache_salt": secrets.token_hex(16)}
        async with self.stack.engine(self.stack.prefill_url) as engine:
            alone = await engine.post("/v1/chat/completions", json=request)
        assert_same("/chat/completions", body, alone.json())

    def _request(self) -> dict[str, Any]:
        return {
            "model": "tiny",
            "messages": list(self.messages),
            "max_tokens": 4,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "logprobs": True,
            "top_logprobs": 5,
        }

    async def row(self) -> dict[str, Any]:
        """The last turn in REST, once router and engines have told of it."""

        async def whole() -> dict[str, Any]:
            for session in await self.stack.rows("/sessions/"):
                for turn in await self.stack.rows(f"/sessions/{session['id']}/turns/"):
                    if turn["id"] == self.turn_ids[-1] and turn["decode_decision"] and turn["decode_engine"]:
                        has_both = turn["prefill_decision"] or not self.prefilled_by[-1]
                        return dict(turn) if has_both and turn["status"] != "running" else {}
            return {}

        return await eventually(whole, within_seconds=15, what="the turn is whole in REST")

    async def until_held(self) -> None:
        """The router may offer the last turn's lease: its agent, which tells both, has told the control plane."""

        async def is_held() -> bool:
            rows = await self.stack.rows("/placements/", engine=self.homes[-1])
            return any(row["turn"] == self.turn_ids[-1] and row["state"] == "held" for row in rows)

        await eventually(is_held, within_seconds=15, what="the lease is held")


async def talks_of(stack: Stack, key: str, count: int) -> list[Talk]:
    """Conversations with a turn each, their leases known."""
    talks = [Talk(stack, key) for _ in range(count)]
    for talk in talks:
        await talk.say("Which berths take class 3?")
    for talk in talks:
        await talk.until_held()
    return talks


async def drain(stack: Stack, engine: str, action: str) -> None:
    async with stack.rest() as rest:
        (await rest.post(f"/engines/{engine}/{action}/")).raise_for_status()


async def test_conversations_spread_and_each_pulls_from_its_holder(stack: Stack, key: str) -> None:
    talks = await talks_of(stack, key, 4)
    assert Counter(talk.homes[0] for talk in talks) == {"decode-0": 2, "decode-1": 2}
    assert {talk.prefilled_by[0] for talk in talks} == {"prefill-0", "prefill-1"}
    for talk in talks:
        await talk.check(await talk.say("And class 4?"))
        row = await talk.row()
        assert (row["decode_engine"], row["prefill_decision"] in REUSING) == (talk.homes[0], True), row
        transfers = await stack.rows("/transfers/", turn=row["id"])
        assert sorted(transfer["direction"] for transfer in transfers) == ["D->P", "P->D"]


async def test_short_turn_is_appended_by_its_holder_where_the_policy_says_so(stack: Stack, key: str) -> None:
    (talk,) = await talks_of(stack, key, 1)
    await stack.publish_and_wait(decode_local_max_new_tokens=200)
    await talk.check(await talk.say("And class 5?"))
    row = await talk.row()
    assert talk.prefilled_by == [talk.prefilled_by[0], ""]
    assert (row["decode_engine"], row["decode_decision"]) == (talk.homes[0], "decode_local"), row


async def test_drained_engine_takes_no_turn_and_its_kv_is_pulled_from_it(stack: Stack, key: str) -> None:
    (mine,) = await talks_of(stack, key, 1)
    drained = mine.homes[0]
    (other,) = {"decode-0", "decode-1"} - {drained}
    await drain(stack, drained, "drain")
    try:
        url = f"{stack.router_url}/healthz"

        async def is_known() -> bool:
            async with httpx.AsyncClient() as client:
                return bool((await client.get(url)).json()["decode_engines"] == 1)

        await eventually(is_known, within_seconds=20, what="the router knows of the drain")
        await mine.check(await mine.say("And class 5?"))
        row = await mine.row()
        assert (row["decode_engine"], row["prefill_decision"] in REUSING) == (other, True), row
        for talk in await talks_of(stack, key, 2):
            assert talk.homes == [other]
    finally:
        await drain(stack, drained, "undrain")


async def test_sessions_of_a_killed_engine_go_on_at_once_with_right_answers(stack: Stack, key: str) -> None:
    """The last test here: the engine needs its time to come back."""
    talks = await talks_of(stack, key, 4)
    ((killed, num_there),) = Counter(talk.homes[0] for talk in talks).most_common(1)
    assert num_there >= 2
    (other,) = {"decode-0", "decode-1"} - {killed}
    stack.kill(killed)
    for talk in talks:
        await talk.check(await talk.say("Still there?"))
        assert talk.homes[-1] == other
        await talk.until_held()
    for talk in talks:
        await talk.check(await talk.say("And now?"))
        row = await talk.row()
        assert (row["decode_engine"], row["prefill_decision"] in REUSING) == (other, True), row
