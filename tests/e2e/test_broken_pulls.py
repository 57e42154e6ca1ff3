"""Pulls that break off on the real pair: a frozen source, a killed one, clients that leave. Answers stay exact.

Afterwards both engines hold no block, and the next turn pulls again.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.legs import Feed, Legs, random_tokens
from tests.e2e.stack import Stack, eventually
from tests.e2e.test_failures import until_healthy

HISTORY = 1600
NEW = 40
DEADLINE_SECONDS = 2.0
REUSING = ("pulled", "trimmed_prefix_diverged")


def workers_of(stack: Stack, program: str) -> list[int]:
    """Processes that answer the engine's peers."""
    children = stack.children(stack.pid(program))
    found = [pid for pid in children if "Worker" in Path(f"/proc/{pid}/comm").read_text()]
    return found or [stack.engine_core_pid(program)]


@contextmanager
def frozen(stack: Stack, program: str) -> Iterator[None]:
    """Answers no READ meanwhile; a posted one goes on afterwards."""
    pids = workers_of(stack, program)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def until_empty(stack: Stack, within_seconds: float = 45) -> None:
    """Neither engine holds a block or runs a request; a handoff that nobody fetched is held for 30 s."""

    async def is_empty() -> bool:
        for url in (stack.prefill_url, stack.decode_url):
            counters = await stack.counters(url)
            if counters["vllm:kv_cache_usage_perc"] or counters["vllm:num_requests_running"]:
                return False
        return True

    await eventually(is_empty, within_seconds=within_seconds, what="both engines hold nothing")


@asynccontextmanager
async def conversation(stack: Stack) -> AsyncIterator[tuple[Legs, Feed, list[int], str]]:
    """One turn taken; the tokens of the next one and D's offer for it. All leases are released at the end."""
    async with Feed(stack) as feed:
        legs = Legs(stack)
        prompt = random_tokens(HISTORY)
        _, answer, lease = await legs.turn(prompt, None, feed)
        yield legs, feed, prompt + answer.token_ids + random_tokens(NEW), lease.offer
        await release_all(feed)


async def release_all(feed: Feed) -> None:
    for lease_id in list(feed.leases):
        await feed.release(lease_id)
        await feed.wait_ended(lease_id)


async def next_turn_pulls(legs: Legs, feed: Feed) -> None:
    prompt = random_tokens(300)
    _, answer, lease = await legs.turn(prompt, None, feed)
    first, _, _ = await legs.turn(prompt + answer.token_ids + random_tokens(NEW), lease.offer, feed)
    assert first.reply["decision"] in REUSING, first.reply


@pytest.mark.timeout(180)
async def test_frozen_decode_engine_holds_no_prefill_and_no_block_for_ever(stack: Stack) -> None:
    await stack.publish_and_wait(kv_pull_deadline=DEADLINE_SECONDS)
    async with conversation(stack) as (legs, feed, tokens, offer):
        with frozen(stack, "decode-0"):
            late = await legs.prefill(tokens, offer)
        assert late.reply["decision"] == "recomputed_timeout"
        assert late.seconds > DEADLINE_SECONDS
        late.assert_same_as(await legs.recompute(stack.prefill_url, tokens))
        await next_turn_pulls(legs, feed)
    await until_empty(stack)


@pytest.mark.timeout(180)
async def test_frozen_prefill_engine_holds_no_decode_and_no_block_for_ever(stack: Stack) -> None:
    await stack.publish_and_wait(kv_pull_deadline=DEADLINE_SECONDS)
    async with conversation(stack) as (legs, feed, tokens, _):
        first = await legs.prefill(tokens)
        with frozen(stack, "prefill-0"):
            late = await legs.decode(tokens, first.reply["offer"])
        late.assert_same_as(await legs.recompute(stack.decode_url, tokens))
        assert late.seconds > DEADLINE_SECONDS
        await next_turn_pulls(legs, feed)
    await until_empty(stack)


async def leave_after(seconds: float, leg: Any) -> None:
    task = asyncio.ensure_future(leg)
    await asyncio.wait({task}, timeout=seconds)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.timeout(180)
async def test_clients_that_leave_at_any_time_leave_no_block_behind(stack: Stack) -> None:
    async with conversation(stack) as (legs, feed, tokens, offer):
        for seconds in (0.005, 0.02, 0.05, 0.1, 0.2, 0.4):
            await leave_after(seconds, legs.prefill(tokens, offer))
            first = await legs.prefill(tokens, offer)
            await leave_after(seconds, legs.decode(tokens, first.reply["offer"], max_tokens=40))
        with frozen(stack, "decode-0"):
            await leave_after(0.5, legs.prefill(tokens, offer))
        await next_turn_pulls(legs, feed)
    await until_empty(stack)


@pytest.mark.timeout(300)
async def test_source_that_is_killed_during_a_pull_costs_a_recompute(stack: Stack) -> None:
    """Frozen first, so that the READ is under way for certain. Once for each direction; supervisord starts it again."""
    legs, prompt = Legs(stack), random_tokens(HISTORY)
    async with Feed(stack) as feed:
        _, answer, lease = await legs.turn(prompt, None, feed)
    tokens = prompt + answer.token_ids + random_tokens(NEW)
    first = await legs.prefill(tokens, lease.offer)
    for program, leg in (
        ("prefill-0", legs.decode(tokens, first.reply["offer"])),
        ("decode-0", legs.prefill(tokens, lease.offer)),
    ):
        await killed_during(stack, program, leg, legs, tokens)
    async with Feed(stack) as feed:
        await next_turn_pulls(Legs(stack), feed)
        await release_all(feed)
    await until_empty(stack)


async def killed_during(stack: Stack, program: str, leg: Any, legs: Legs, tokens: list[int]) -> None:
    url = {"prefill-0": stack.prefill_url, "decode-0": stack.decode_url}
    other = next(address for name, address in url.items() if name != program)
    pid = stack.pid(program)
    with frozen(stack, program):
        task = asyncio.ensure_future(leg)

        async def is_waiting() -> bool:
            return (await stack.counters(other))["vllm:num_requests_waiting"] > 0

        await eventually(is_waiting, within_seconds=10, what="the pull is under way")
        stack.kill(program)
    answer = await task
    answer.assert_same_as(await legs.recompute(other, tokens))

    async def is_back() -> bool:
        with contextlib.suppress(AssertionError):
            return stack.pid(program) != pid
        return False

    await eventually(is_back, within_seconds=30, what=f"{program} was started again")
    await until_healthy(f"{url[program]}/health", 120)
    engine = f"/engines/{program}/"

    async def is_ready() -> bool:
        return bool((await stack.get(engine))["state"] == "ready")

    await eventually(is_ready, within_seconds=30, what=f"{program} is ready again")
