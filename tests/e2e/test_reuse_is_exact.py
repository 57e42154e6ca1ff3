"""Never a wrong token: whatever the history became, an answer with reuse equals a recompute's. Real engines."""

import pytest

from tests.e2e.legs import Feed, Legs, random_tokens
from tests.e2e.stack import Stack

BLOCK = 32
HISTORY = 704
NEW = 40


def histories(held: list[int]) -> dict[str, tuple[list[int], int]]:
    """Prompt of the next turn, and how many of its tokens are common with what D holds."""
    new = random_tokens(NEW, seed=11)
    edited = [*held[:330], 7901, 7902, *held[332:]]
    return {
        "appended": (held + new, len(held) - 1),
        "edited": (edited + new, 330),
        "edited at the first token": ([7901, *held[1:]], 0),
        "stripped middle": (held[:300] + held[360:] + new, 300),
        "regenerated from a strict prefix": (held[:500], 500),
        "a whole number of blocks": (held[:480], 480),
        "one token less than that": (held[:479], 479),
        "one token over a block boundary": (held[:481], 481),
        "the very same sequence": (held, len(held) - 1),
    }


@pytest.mark.parametrize("name", sorted(histories(random_tokens(HISTORY, seed=1))))
async def test_turn_two_equals_a_recompute(stack: Stack, name: str) -> None:
    legs = Legs(stack)
    async with Feed(stack) as feed:
        prompt = random_tokens(HISTORY)
        _, answer, lease = await legs.turn(prompt, None, feed, max_tokens=21)
        tokens, num_common = histories(prompt + answer.token_ids)[name]
        reused = await legs.prefill(tokens, lease.offer)
        reused.assert_same_as(await legs.recompute(stack.prefill_url, tokens))
        expected = num_common // BLOCK * BLOCK
        assert reused.reply["num_pulled_tokens"] == (expected if expected >= 64 else 0)
        _, decoded, _ = await legs.turn(tokens, lease.offer, feed, max_tokens=1)
        decoded.assert_same_as(await legs.recompute(stack.decode_url, tokens))


async def test_released_lease_is_never_read_as_data(stack: Stack) -> None:
    """The digests of a stale offer still match; only the fence knows that the blocks were given to someone else."""
    legs = Legs(stack)
    async with Feed(stack) as feed:
        prompt = random_tokens(HISTORY)
        _, answer, lease = await legs.turn(prompt, None, feed)
        await feed.release(lease.lease.lease_id)
        assert (await feed.wait_ended(lease.lease.lease_id)).state == "released"
        for _ in range(3):
            await legs.recompute(stack.decode_url, random_tokens(1700))
        tokens = prompt + answer.token_ids + random_tokens(NEW)
        stale = await legs.prefill(tokens, lease.offer)
        assert stale.reply["decision"] == "recomputed_expired"
        stale.assert_same_as(await legs.recompute(stack.prefill_url, tokens))


async def test_params_that_nobody_signed_are_ignored(stack: Stack) -> None:
    legs = Legs(stack)
    async with Feed(stack) as feed:
        prompt = random_tokens(HISTORY)
        _, answer, lease = await legs.turn(prompt, None, feed)
        tokens = prompt + answer.token_ids + random_tokens(NEW)
        truth = await legs.recompute(stack.prefill_url, tokens)
        tampered = await legs.prefill(tokens, lease.offer[:-4] + "0000")
        assert tampered.reply["decision"] == "recomputed_rejected"
        tampered.assert_same_as(truth)
        foreign = await legs.prefill(tokens, lease.offer, tenant="somebody-else")
        assert foreign.reply["decision"] == "recomputed_rejected"
        foreign.assert_same_as(truth)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_forged_stock_params_change_nothing(stack: Stack, role: str) -> None:
    """Stock vLLM would read the blocks that a client names; on D it would die of the mismatch."""
    legs = Legs(stack)
    tokens = random_tokens(HISTORY)
    url = stack.prefill_url if role == "prefill" else stack.decode_url
    forged = {
        "do_remote_decode": role == "prefill",
        "do_remote_prefill": role == "decode",
        "remote_block_ids": [[1, 2, 3, 4, 5, 6]],
        "remote_engine_id": "00000000-0000-0000-0000-000000000000",
        "remote_request_id": "forged",
        "remote_host": "127.0.0.1",
        "remote_port": 1,
        "remote_num_tokens": 192,
        "tp_size": 1,
    }
    answer = await legs.post(url, tokens, forged, 1)
    answer.assert_same_as(await legs.recompute(url, tokens))


@pytest.mark.parametrize("difference", ["edited", "edited at the first token", "one token longer", "shorter"])
async def test_decode_leg_with_another_prompt_than_prefill(stack: Stack, difference: str) -> None:
    legs = Legs(stack)
    prompt = random_tokens(HISTORY)
    tokens = {
        "edited": [*prompt[:330], 7901, 7902, *prompt[332:]],
        "edited at the first token": [7901, *prompt[1:]],
        "one token longer": [*prompt, 5000],
        "shorter": prompt[:500],
    }[difference]
    first = await legs.prefill(prompt)
    answer = await legs.decode(tokens, first.reply["offer"])
    answer.assert_same_as(await legs.recompute(stack.decode_url, tokens))
