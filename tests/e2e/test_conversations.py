"""Whole conversations through the router, as a plain OpenAI client has them. Real engines."""

import asyncio
import json
import uuid
from typing import Any, cast

import pytest
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

from tests.e2e.stack import Stack, eventually

SYSTEM = "You keep the records of a small port. " + " ".join(
    f"Berth {number} takes ships of class {number % 7}." for number in range(60)
)


def client_of(stack: Stack) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{stack.router_url}/v1", api_key=stack.secret("api-key"), max_retries=0, timeout=120)


async def say(client: AsyncOpenAI, messages: list[dict[str, str]], text: str, **extra: Any) -> str:
    """One streamed turn; appends both messages."""
    messages.append({"role": "user", "content": text})
    stream: AsyncStream[ChatCompletionChunk] = await client.chat.completions.create(
        model="tiny",
        messages=cast(list[ChatCompletionMessageParam], messages),
        max_tokens=8,
        temperature=0,
        stream=True,
        **extra,
    )
    reply = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    messages.append({"role": "assistant", "content": reply})
    return reply


def is_whole(turn: dict[str, Any]) -> bool:
    """Router and both engines have reported it; they do so in any order."""
    return bool(turn["status"] and turn["prefill_decision"] and turn["decode_decision"])


async def turns_of(stack: Stack, count: int, **filters: Any) -> list[dict[str, Any]]:
    """The turns of the newest session, once ``count`` of them have both decisions and their end."""

    async def complete() -> list[dict[str, Any]]:
        sessions = await stack.rows("/sessions/", **filters)
        for session in sessions:
            turns = await stack.rows(f"/sessions/{session['id']}/turns/")
            if len(turns) == count and all(is_whole(turn) for turn in turns):
                return sorted(turns, key=lambda turn: int(turn["index"]))
        return []

    return await eventually(complete, within_seconds=15, what=f"a session with {count} whole turns in REST")


async def test_fifty_turns_without_a_pause_all_reuse(stack: Stack) -> None:
    messages = [{"role": "system", "content": SYSTEM + uuid.uuid4().hex}]
    async with client_of(stack) as client:
        for number in range(50):
            await say(client, messages, f"Entry {number}.", extra_body={"conversation_id": f"fifty-{id(messages)}"})
    turns = await turns_of(stack, 50)
    reusing = [turn for turn in turns[1:] if turn["prefill_decision"] in ("pulled", "trimmed_prefix_diverged")]
    assert len(reusing) == 49, [turn["prefill_decision"] for turn in turns]
    assert all(turn["reused_tokens"] >= turn["prompt_tokens"] // 2 for turn in reusing)


async def test_two_conversations_without_ids_reuse_their_own(stack: Stack) -> None:
    start = {"role": "system", "content": SYSTEM + uuid.uuid4().hex}
    first, second = [start], [start]

    async def converse(client: AsyncOpenAI, messages: list[dict[str, str]], name: str) -> None:
        await say(client, messages, "Open the book.")
        for number in range(3):
            await say(client, messages, f"{name} writes entry {number}.")

    before = {session["id"] for session in await stack.rows("/sessions/")}
    async with client_of(stack) as client:
        await asyncio.gather(converse(client, first, "Ada"), converse(client, second, "Grace"))

    async def two_sessions() -> list[list[dict[str, Any]]]:
        new = [session["id"] for session in await stack.rows("/sessions/") if session["id"] not in before]
        all_turns = [await stack.rows(f"/sessions/{session}/turns/") for session in new]
        is_done = all(is_whole(turn) for turns in all_turns for turn in turns)
        return all_turns if is_done and sum(map(len, all_turns)) == 8 else []

    sessions = await eventually(two_sessions, within_seconds=15, what="eight turns in REST")
    assert sorted(map(len, sessions)) == [4, 4]
    for turns in sessions:
        later = sorted(turns, key=lambda turn: turn["index"])[1:]
        # Its own lease holds the whole turn before; the other one's only the shared start.
        assert all(turn["verified_tokens"] >= turn["prompt_tokens"] - 96 for turn in later), later


Figures = dict[str, tuple[float, float]]


async def rows_and_counters(stack: Stack) -> tuple[Figures, Figures]:
    """(number, bytes) of completed transfers by direction: as recorded, and as the engines that run now count them."""
    rows: Figures = {}
    counted: Figures = {}
    readers = (("D->P", "prefill-0", stack.prefill_url), ("P->D", "decode-0", stack.decode_url))
    for direction, target, url in readers:
        summary = await stack.get("/transfers/summary/", direction=direction, target=target, outcome="completed")
        counters = await stack.counters(url)
        rows[direction] = (summary["count"], summary["bytes"])
        counted[direction] = (
            counters.get("vllm:nixl_xfer_time_seconds_count", 0.0),
            counters.get("vllm:nixl_bytes_transferred_sum", 0.0),
        )
    return rows, counted


def growth(now: Figures, before: Figures) -> Figures:
    return {way: (now[way][0] - before[way][0], now[way][1] - before[way][1]) for way in now}


async def test_transfer_rows_equal_the_engines_own_counters(stack: Stack) -> None:
    """By what both grow: an engine that an earlier test has killed began to count anew."""
    rows_before, counters_before = await rows_and_counters(stack)
    messages = [{"role": "system", "content": SYSTEM + uuid.uuid4().hex}]
    async with client_of(stack) as client:
        for number in range(3):
            await say(client, messages, f"Entry {number}.")

    async def agree() -> bool:
        rows, counters = await rows_and_counters(stack)
        grown = growth(counters, counters_before)
        return growth(rows, rows_before) == grown and all(count > 0 for count, _ in grown.values())

    await eventually(agree, within_seconds=15, what="rows and counters agree in both directions")


async def test_stream_is_passed_on_byte_for_byte(stack: Stack) -> None:
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 5, "temperature": 0, "stream": True}
    async with stack.client() as client, client.stream("POST", "/completions", json=body) as response:
        assert response.status_code == 200
        lines = [line async for line in response.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert len(events) >= 5
    assert not any("kv_transfer_params" in event and event["kv_transfer_params"] for event in events)


@pytest.mark.parametrize(
    ("path", "content", "headers", "status"),
    [
        ("/chat/completions", b"{", {}, 400),
        ("/chat/completions", b'{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}', {}, 404),
        ("/chat/completions", b'{"model": "tiny", "messages": "x"}', {}, 400),
        ("/chat/completions", b"[1]", {}, 400),
        ("/chat/completions", b'{"model": "tiny"}', {"Authorization": "Bearer wrong"}, 401),
        ("/nothing", b"{}", {}, 404),
    ],
)
async def test_bad_input_gets_a_clear_4xx(
    stack: Stack, path: str, content: bytes, headers: dict[str, str], status: int
) -> None:
    async with stack.client() as client:
        response = await client.post(path, content=content, headers={"Content-Type": "application/json"} | headers)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["message"]
    assert error["type"]


async def test_oversize_body_is_refused(stack: Stack) -> None:
    async with stack.client() as client:
        response = await client.post("/completions", content=b'{"prompt": "' + b"x" * (33 * 1024 * 1024) + b'"}')
    assert response.status_code == 413
    assert response.json()["error"]["message"]
