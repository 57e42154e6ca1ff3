"""Suffix trimming, queues longer than leases, and preemption, on a pair with little memory over IPv6. Real engines.

Field reports 9 (vllm-project/vllm#50558), 11 (vllm-project/vllm#18148), 21 (aws-samples/aws-do-eks#84) and
23 (vllm-project/vllm#50297, #53250). Every answer is compared with a recompute.
"""

import asyncio
import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from connector.engine.offers import PURPOSE, KvOffer
from tests.e2e.legs import Answer, Legs, random_tokens
from tests.e2e.stack import eventually
from tests.e2e.tight_pair import LEASE_SECONDS, MAX_LENGTH, MAX_RUNNING, NUM_BLOCKS, Ear, TightPair, tight_pair

BLOCK = 32
BUSY_TOKENS = 850
"""Of each of D's running requests: seconds of work, also on a fast machine."""
NUM_REMOTE = 4
CASES = list(itertools.product((0, 1, NUM_REMOTE - 1, NUM_REMOTE), (-1, 0, 1)))
"""(whole blocks that the puller has already, tokens of the prompt beyond the last remote block)."""

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def pair() -> Iterator[TightPair]:
    with tight_pair() as running:
        yield running


@pytest.fixture
def stack(pair: TightPair) -> TightPair:
    """The pair stands for the stack of other end-to-end tests; there is no policy to put back."""
    return pair


@pytest.fixture
def default_policy() -> None:
    """No control plane here."""


async def warm(legs: Legs, url: str, tokens: list[int], num_blocks: int) -> None:
    """The engine's own prefix cache holds exactly these whole blocks of the tokens."""
    if num_blocks:
        answer = await legs.post(url, [*tokens[: num_blocks * BLOCK], 299], {}, 1)
        assert answer.status == 200


# ---------------------------------------------------------------- field report 9


@pytest.mark.parametrize(("num_cached", "extra"), CASES)
async def test_prefill_pulls_what_it_lacks_at_every_boundary(pair: TightPair, num_cached: int, extra: int) -> None:
    legs = Legs(pair)
    prompt = random_tokens((NUM_REMOTE + 1) * BLOCK)
    async with Ear(pair.links["decode"]) as ear:
        turn_id = str(uuid.uuid4())
        held = await legs.decode(prompt, None, max_tokens=1, turn_id=turn_id)
        assert held.status == 200, held.body
        lease = await ear.lease_of_turn(turn_id)
    asked = prompt[: NUM_REMOTE * BLOCK + extra]
    await warm(legs, pair.prefill_url, prompt, num_cached)
    answer = await legs.prefill(asked, lease.offer)
    answer.assert_same_as(await legs.recompute(pair.prefill_url, asked))
    num_common = len(asked) // BLOCK
    missing = max(0, num_common - min(num_cached, (len(asked) - 1) // BLOCK)) * BLOCK
    assert answer.reply["num_pulled_tokens"] == missing
    again = await legs.post(pair.prefill_url, asked, {}, 1)
    again.assert_same_as(answer)


@pytest.mark.parametrize(("num_cached", "extra"), CASES)
async def test_decode_pulls_what_it_lacks_at_every_boundary(pair: TightPair, num_cached: int, extra: int) -> None:
    legs = Legs(pair)
    prompt = random_tokens(NUM_REMOTE * BLOCK + extra)
    await warm(legs, pair.decode_url, prompt, min(num_cached, len(prompt) // BLOCK))
    first = await legs.prefill(prompt)
    answer = await legs.decode(prompt, first.reply["offer"], max_tokens=2)
    answer.assert_same_as(await legs.recompute(pair.decode_url, prompt))
    again = await legs.post(pair.decode_url, prompt, {}, 1)
    again.assert_same_as(await legs.recompute(pair.prefill_url, prompt))


# ---------------------------------------------------------------- field report 11


async def test_offers_name_the_side_channel_without_brackets(pair: TightPair) -> None:
    """As the engine gave it; both directions above were pulled through it."""
    legs = Legs(pair)
    reply = (await legs.prefill(random_tokens(2 * BLOCK))).reply
    assert pair.fleet_key.verify(PURPOSE, reply["offer"], KvOffer).host == "::1"


# ---------------------------------------------------------------- field report 21


async def test_handoff_outlives_a_queue_longer_than_its_lease(pair: TightPair) -> None:
    """D is busy for longer than P's lease; five more requests wait there, each with an offer of P."""
    legs = Legs(pair)
    prompts = [random_tokens(3 * BLOCK + number) for number in range(5)]
    async with Ear(pair.links["decode"]) as ear, Ear(pair.links["prefill"]) as prefill_ear:
        busy = [asyncio.create_task(keep_busy(legs, pair, BUSY_TOKENS)) for _ in range(MAX_RUNNING)]

        async def turn(prompt: list[int]) -> tuple[Answer, str]:
            turn_id = str(uuid.uuid4())
            first = await legs.prefill(prompt, turn_id=turn_id)
            return await legs.decode(prompt, first.reply["offer"], max_tokens=2, turn_id=turn_id), turn_id

        waiting = asyncio.gather(*(turn(prompt) for prompt in prompts))
        await asyncio.sleep(LEASE_SECONDS + 1.5)
        assert not any(task.done() for task in busy), "D was free too soon for this to prove anything"
        num_renewed_blocks = (await prefill_ear.load()).num_leased_blocks
        turns = await waiting
        await asyncio.gather(*busy)
        decisions = {leg.turn_id: leg.decision for leg in ear.decided}
    for prompt, (answer, _) in zip(prompts, turns, strict=True):
        answer.assert_same_as(await legs.recompute(pair.decode_url, prompt))
    told = [decisions[turn_id] for _, turn_id in turns]
    assert set(told) <= {"pulled", "recomputed_expired"}, told
    assert num_renewed_blocks > 0, "heartbeats renew the lease of whoever waits"


async def keep_busy(legs: Legs, pair: TightPair, num_tokens: int) -> None:
    answer = await legs.post(pair.decode_url, random_tokens(BLOCK), {}, num_tokens)
    assert answer.status == 200, answer.body


# ---------------------------------------------------------------- field report 23


async def num_preemptions(pair: TightPair, url: str) -> float:
    return (await pair.counters(url))["vllm:num_preemptions_total"]


async def test_preempted_prefill_answers_right_and_its_next_turn_too(pair: TightPair) -> None:
    """An older request leaves no room for the last block of a prompt, so that P preempts it on its last step."""
    legs = Legs(pair)
    before = await num_preemptions(pair, pair.prefill_url)
    prompt = random_tokens(31 * BLOCK)
    fact = {"turn_id": str(uuid.uuid4()), "session_id": uuid.uuid4().hex}
    async with Ear(pair.links["prefill"]) as prefill_ear, Ear(pair.links["decode"]) as ear:
        older = asyncio.create_task(legs.post(pair.prefill_url, random_tokens(30 * BLOCK), {}, 60))
        await eventually(lambda: is_running(pair.prefill_url, pair), within_seconds=30, what="the older request runs")
        first = await legs.prefill(prompt, **fact)
        assert await num_preemptions(pair, pair.prefill_url) > before
        assert (await older).status == 200
        first.assert_same_as(await legs.recompute(pair.prefill_url, prompt))
        second = await legs.decode(prompt, first.reply["offer"], max_tokens=3, **fact)
        second.assert_same_as(await legs.recompute(pair.decode_url, prompt))
        lease = await ear.lease_of_turn(fact["turn_id"])
        await next_turn(legs, pair, prefill_ear, prompt + second.token_ids[:2], lease.offer)


async def is_running(url: str, pair: TightPair) -> bool:
    return (await pair.counters(url))["vllm:num_requests_running"] > 0


async def next_turn(legs: Legs, pair: TightPair, ear: Ear, history: list[int], offer: str) -> None:
    turn_id = str(uuid.uuid4())
    tokens = history + random_tokens(8)
    answer = await legs.prefill(tokens, offer, turn_id=turn_id)
    answer.assert_same_as(await legs.recompute(pair.prefill_url, tokens))
    assert ear.num_pulls(turn_id) <= 1


async def test_decode_request_preempted_after_its_pull_is_not_pulled_again(pair: TightPair) -> None:
    """Two replies that grow until D can't hold both; vLLM asks the connector anew for the one that lost its blocks."""
    legs = Legs(pair)
    before = await num_preemptions(pair, pair.decode_url)
    length, grows = 26 * BLOCK, 5 * BLOCK
    facts: list[dict[str, Any]] = [{"turn_id": str(uuid.uuid4()), "session_id": uuid.uuid4().hex} for _ in range(2)]
    prompts = [random_tokens(length) for _ in facts]
    async with Ear(pair.links["decode"]) as ear:

        async def turn(prompt: list[int], fact: dict[str, Any]) -> Answer:
            first = await legs.prefill(prompt, **fact)
            return await legs.decode(prompt, first.reply["offer"], max_tokens=grows, **fact)

        answers = await asyncio.gather(*(turn(p, f) for p, f in zip(prompts, facts, strict=True)))
        assert await num_preemptions(pair, pair.decode_url) > before
        for prompt, fact, answer in zip(prompts, facts, answers, strict=True):
            truth = await legs.post(pair.decode_url, prompt, {}, grows, salt=uuid.uuid4().hex)
            assert answer.token_ids == truth.token_ids
            answer.assert_same_as(truth)
            assert ear.num_pulls(fact["turn_id"]) <= 1
    await eventually(lambda: is_idle(pair), within_seconds=LEASE_SECONDS * 5, what="nothing waits or hangs")


async def is_idle(pair: TightPair) -> bool:
    counters = [await pair.counters(url) for url in (pair.prefill_url, pair.decode_url)]
    return all(c["vllm:num_requests_running"] == c["vllm:num_requests_waiting"] == 0 for c in counters)


# ---------------------------------------------------------------- leases under pressure


async def num_leased_blocks(pair: TightPair) -> int:
    usage = (await pair.counters(pair.decode_url))["vllm:kv_cache_usage_perc"]
    return round(usage * (NUM_BLOCKS - 1))


async def test_leases_give_way_to_a_big_prompt_at_once_and_nobody_is_preempted(pair: TightPair) -> None:
    """Stock vLLM waits for a lease's TTL here, 480 s, or preempts who grows."""
    legs = Legs(pair)
    for _ in range(6):
        await legs.decode(random_tokens(9 * BLOCK - 2), None, max_tokens=2)
    leased = await num_leased_blocks(pair)
    assert NUM_BLOCKS // 2 - 9 <= leased <= NUM_BLOCKS // 2, "leases hold up to half of the blocks, which is the limit"
    before = await num_preemptions(pair, pair.decode_url)
    big = random_tokens(MAX_LENGTH - BLOCK)
    answer = await legs.decode(big, None, max_tokens=BLOCK // 2)
    assert answer.seconds < 60
    assert await num_preemptions(pair, pair.decode_url) == before
    answer.assert_same_as(await legs.recompute(pair.decode_url, big))
