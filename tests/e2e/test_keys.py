"""The fleet key rotated under a conversation: every process follows its file, and reuse goes on. Real engines."""

import subprocess
import sys
import uuid
from pathlib import Path

from tests.e2e.legs import Feed, Legs, random_tokens
from tests.e2e.stack import ROOT, Stack, eventually
from tests.e2e.test_conversations import SYSTEM, client_of, say, turns_of

REUSING = ("pulled", "trimmed_prefix_diverged")
FOLLOWERS = ("prefill-0", "decode-0", "router")
HISTORY = 700


def operate(stack: Stack, command: str, *arguments: str) -> list[str]:
    """The operator's command on the stack's key file; the key ids that it prints, the signing one first."""
    call = [sys.executable, "-m", "connector.signing", command, str(stack.run / "fleet.key"), *arguments]
    printed = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in printed.splitlines()]


def log_of(stack: Stack, program: str) -> str:
    return Path(stack.run / "logs" / f"{program}.log").read_text(errors="replace")


async def until_told(stack: Stack, sentence: str) -> None:
    """Everyone who reads the file has said so in its log."""

    async def all_said() -> bool:
        return all(sentence in log_of(stack, program) for program in FOLLOWERS)

    await eventually(all_said, within_seconds=15, what=f"{FOLLOWERS} say {sentence!r}")


async def test_a_conversation_reuses_through_a_rotation_and_after_it(stack: Stack) -> None:
    messages = [{"role": "system", "content": SYSTEM + uuid.uuid4().hex}]
    (old,) = operate(stack, "list")
    async with client_of(stack) as client:
        await say(client, messages, "Before.")
        new = operate(stack, "rotate")[0]
        await until_told(stack, f"{new} signs, {new}, {old} verify")
        for text in ("During.", "Still during."):
            await say(client, messages, text)
        turns = await turns_of(stack, 3)
        operate(stack, "remove", old)
        await until_told(stack, f"{new} signs, {new} verify")
        for text in ("After.", "Later."):
            await say(client, messages, text)
    assert [turn["prefill_decision"] in REUSING for turn in turns] == [False, True, True]
    assert {turn["decode_decision"] for turn in turns} == {"pulled"}
    later = await turns_of(stack, 2)
    assert later[0]["prefill_decision"] == "recomputed_no_placement"
    assert later[1]["prefill_decision"] in REUSING


async def test_a_lease_of_the_old_key_is_read_until_its_line_is_gone(stack: Stack) -> None:
    legs = Legs(stack)
    async with Feed(stack) as feed:
        prompt = random_tokens(HISTORY)
        _, answer, lease = await legs.turn(prompt, None, feed)
        (old,) = operate(stack, "list")
        new = operate(stack, "rotate")[0]
        await until_told(stack, f"{new} signs, {new}, {old} verify")
        tokens = prompt + answer.token_ids + random_tokens(40)
        truth = await legs.recompute(stack.prefill_url, tokens)
        during, decoded, _ = await legs.turn(tokens, lease.offer, feed)
        assert during.reply["decision"] == "pulled"
        during.assert_same_as(truth)
        decoded.assert_same_as(await legs.recompute(stack.decode_url, tokens))
        operate(stack, "remove", old)
        await until_told(stack, f"{new} signs, {new} verify")
        after = await legs.prefill(tokens, lease.offer)
        assert after.reply["decision"] == "recomputed_rejected"
        after.assert_same_as(truth)


async def test_a_broken_file_changes_nothing_and_is_named(stack: Stack) -> None:
    path = stack.run / "fleet.key"
    whole = path.read_text()
    messages = [{"role": "system", "content": SYSTEM + uuid.uuid4().hex}]
    async with client_of(stack) as client:
        await say(client, messages, "Before.")
        try:
            path.write_text("k9 this is no secret\n")
            await until_told(stack, f"{path} line 1: the secret is not hexadecimal")
            await say(client, messages, "While it is broken.")
        finally:
            path.write_text(whole)
    turns = await turns_of(stack, 2)
    assert turns[1]["prefill_decision"] in REUSING
    assert not any("this is no secret" in log_of(stack, program) for program in FOLLOWERS)
