"""Agents that change their history, through the router: right answers, exact reuse, and leases that end in time.

Field reports 1 (vllm-project/vllm#43094), 57 (vllm-project/vllm#36829, anthropics/claude-code#68900,
dimagi/open-chat-studio#3625) and 59 (defilantech/LLMKube#1286, yologdev/yoagent#99). Real engines; every answer is
compared with one that reuses nothing.
"""

from typing import Any

import pytest

from tests.e2e.legs import random_tokens
from tests.e2e.routed import REUSING, VARIED, RoutedClient
from tests.e2e.stack import Stack, eventually

BLOCK = 32
SYSTEM = "You keep the records of a small port. " + " ".join(
    f"Berth {number} takes ships of class {number % 7}." for number in range(30)
)


def system(text: str = SYSTEM) -> dict[str, str]:
    return {"role": "system", "content": text}


async def test_reasoning_stripped_from_a_reply_is_reused_up_to_it_and_told(stack: Stack) -> None:
    """Field report 1: D holds prompt, thinking and answer; the client sends prompt and answer."""
    client = RoutedClient(stack, [system()])
    reply = await client.say("Open the book.", max_tokens=160, is_checked=False, **VARIED)
    text = reply["choices"][0]["message"]["content"]
    client.messages[-1]["content"] = text[-len(text) // 3 :]
    await client.say("Go on.")
    first, second = await client.turns()
    assert second["prefill_decision"] == "trimmed_prefix_diverged"
    assert second["offered_tokens"] - second["verified_tokens"] >= 3 * BLOCK, "the thinking is three blocks and more"
    assert second["diverged_at_token"] == second["reused_tokens"] == second["verified_tokens"]
    assert first["prompt_tokens"] - BLOCK <= second["reused_tokens"] <= first["prompt_tokens"]
    assert (second["diverged_at_message"], second["diverged_role"]) == (2, "assistant")


async def test_reasoning_stripped_by_token_ids_is_cut_to_the_very_block(stack: Stack) -> None:
    client = RoutedClient(stack)
    prompt = random_tokens(300)
    answer = await client.complete(prompt, max_tokens=130, is_checked=False, **VARIED)
    reply = answer["choices"][0]["token_ids"]
    await client.complete(prompt + reply[100:] + random_tokens(20))
    _, second = await client.turns()
    assert second["prefill_decision"] == "trimmed_prefix_diverged"
    assert second["reused_tokens"] == second["diverged_at_token"] == 300 // BLOCK * BLOCK


@pytest.mark.parametrize(
    ("share", "decision"), [(None, "recomputed_prefix_diverged"), (0.8, "trimmed_prefix_diverged")]
)
async def test_one_changed_token_is_reused_up_to_its_block(stack: Stack, share: float | None, decision: str) -> None:
    """Field report 57: at position 10, and at 80 % of the history."""
    client = RoutedClient(stack)
    prompt = random_tokens(600)
    history = prompt + (await client.complete(prompt))["choices"][0]["token_ids"]
    position = 10 if share is None else int(share * len(history))
    history[position] = 299
    await client.complete(history + random_tokens(20))
    _, second = await client.turns()
    expected = position // BLOCK * BLOCK
    assert second["prefill_decision"] == decision
    assert (second["reused_tokens"], second["diverged_at_token"]) == (expected, expected)


async def test_changed_line_in_the_system_prompt_is_named(stack: Stack) -> None:
    client = RoutedClient(stack, [system(f"It is 09:14:59. {SYSTEM}")])
    await client.say("Open the book.")
    client.messages[0] = system(f"It is 09:15:03. {SYSTEM}")
    await client.say("Go on.")
    _, second = await client.turns()
    assert (second["diverged_at_message"], second["diverged_role"]) == (0, "system")
    assert second["diverged_at_token"] == second["reused_tokens"] == 0
    assert SYSTEM not in str(second)


async def test_midnight_in_a_template_is_told_from_a_changed_message(stack: Stack) -> None:
    """Field report 57: a template that prints the date. The router changes nothing and sees no message change."""
    client = RoutedClient(stack, [system()])
    await client.say("Open the book.", chat_template_kwargs={"today": "2026-11-30"})
    await client.say("Go on.", chat_template_kwargs={"today": "2026-11-30"})
    await client.say("And on.", chat_template_kwargs={"today": "2026-12-01"})
    _, before, after = await client.turns()
    assert before["prefill_decision"] in REUSING
    assert before["diverged_role"] in ("", "assistant")
    assert (after["diverged_at_message"], after["diverged_role"]) == (None, "template")
    assert after["diverged_at_token"] == after["reused_tokens"] == 0


async def placements(stack: Stack, session: str) -> list[dict[str, Any]]:
    return await stack.rows("/placements/", session=session)


async def until_held(stack: Stack, session: str, count: int, what: str) -> None:
    async def settled() -> bool:
        return sum(row["state"] == "held" for row in await placements(stack, session)) == count

    await eventually(settled, within_seconds=10, what=f"{count} leases are held {what}")


@pytest.mark.timeout(240)
async def test_compaction_at_every_turn_holds_one_lease_and_leaves_sub_agents_theirs(stack: Stack) -> None:
    """Field report 59: 20 turns; the tenth and later ones drop the two oldest messages, the fifteenth sums all up.

    Every dead lease goes with the next turn's grant, but for the one that the summary leaves: nothing of its history is
    sent again, which a sub-agent's first turn looks like as well. It goes with its TTL.
    """
    client = RoutedClient(stack, [system()])
    sub_agent = RoutedClient(stack, [system("You are a sub-agent. " + SYSTEM)], key=client.key)
    session, num_others = "", 0
    for number in range(20):
        if number == 15:
            client.messages = [system(), {"role": "user", "content": "Summary: " + SYSTEM[:200]}]
        elif 10 <= number < 15:
            del client.messages[1:3]
        elif number >= 18:
            del client.messages[2:4]
        await client.say(f"Entry {number}.", is_checked=number in (1, 10, 11, 15, 16, 19))
        if number == 0:
            newest = (await stack.get("/sessions/"))["results"][0]
            session = str(newest["id"])
        if number == 12:
            await sub_agent.say("Count the ships.")
            num_others += 1
        if number == 15:
            num_others += 1
        await until_held(stack, session, 1 + num_others, f"after turn {number}")
    rows = await placements(stack, session)
    assert sum(row["end_reason"] == "rewritten" for row in rows) == 5 + 2
    assert sum(row["state"] == "superseded" for row in rows) == len(rows) - 3
    client.num_turns += sub_agent.num_turns
    turns = await client.turns()
    changed_at = [turn["diverged_at_message"] for turn in turns if turn["diverged_role"] == "user"]
    assert changed_at.count(1) >= 6
    assert changed_at.count(2) >= 2
    load = (await stack.get("/engines/decode-0/"))["load"]
    assert load["num_unread_blocks"] > 0, "leases that nobody has read are shown"
    assert load["unread_block_seconds"] >= 0
