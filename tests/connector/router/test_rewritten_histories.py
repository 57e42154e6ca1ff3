"""Agents that change their history: what is offered, what is released, and what the record says of the difference."""

from typing import Any

import pytest

from connector.protocol import Decision, Role, TurnRecorded
from tests.connector.router.conftest import Scene, assistant, user
from tests.connector.router.waiting import eventually

SYSTEM = {"role": "system", "content": "You keep the records."}
KEY = "the-agent"


class Agent:
    """A client with a history that a test may change between turns."""

    def __init__(self, scene: Scene, key: str = KEY, system: dict[str, Any] = SYSTEM) -> None:
        self.scene = scene
        self.messages: list[dict[str, Any]] = [system]
        self.key = key
        self.num_turns = 0

    async def turn(self, **fields: Any) -> TurnRecorded:
        """One served turn as it was recorded, its lease known."""
        control, number = self.scene.control, len(self.scene.control.turns)
        self.num_turns += 1
        self.messages.append(user(f"{self.key} asks {self.num_turns}"))
        given = {"conversation_id": self.key} if self.key else {}
        await self.scene.chat(self.messages, **given, **fields)
        self.messages.append(assistant(f"{self.key} hears {self.num_turns}"))
        await eventually(lambda: len(control.turns) > number, "the turn is recorded")
        turn = control.turns[-1]
        known = self.scene.live.index
        await eventually(lambda: (t := known.get(turn.turn_id)) and t.lease, "its lease is known")
        return turn

    def replaced(self) -> list[str]:
        """Turns whose leases the last decode envelope replaces."""
        envelope = self.scene.decode.received[-1].envelope
        assert envelope is not None
        return [lease_id.removeprefix("lease-") for lease_id in envelope.replaces]


@pytest.mark.parametrize("key", [KEY, ""], ids=["keyed", "without a key"])
async def test_compaction_replaces_the_dead_lease_at_every_turn(scene: Scene, key: str) -> None:
    """Field report 59 (defilantech/LLMKube#1286, yologdev/yoagent#99, open-webui/open-webui#27037)."""
    agent = Agent(scene, key)
    turns = [await agent.turn() for _ in range(4)]
    for _ in range(4):
        del agent.messages[1:3]
        turns.append(await agent.turn())
        assert turns[-2].turn_id in agent.replaced()
        for turn_id in agent.replaced():
            await scene.decode.feed.end(f"lease-{turn_id}")
        before = turns[-2].turn_id
        await eventually(lambda known=before: not has_lease(scene, known), "the dead lease is gone")  # type: ignore[misc]
    assert len({turn.session_id for turn in turns}) == 1
    assert turns[-1].diverged_at_message == 1
    assert turns[-1].diverged_role == "user"


def has_lease(scene: Scene, turn_id: str) -> bool:
    turn = scene.live.index.get(turn_id)
    return turn is not None and turn.lease is not None


async def test_summary_keeps_one_old_lease_and_no_more(scene: Scene) -> None:
    """Field report 59: nothing of the old history is left, so that nothing tells it from a sub-agent's."""
    agent = Agent(scene)
    for _ in range(3):
        await agent.turn()
    agent.messages = [SYSTEM, user("Summary of all that was said.")]
    summarised = await agent.turn()
    assert agent.replaced() == []
    assert (summarised.diverged_at_message, summarised.diverged_role) == (1, "user")
    await agent.turn()
    assert agent.replaced() == []


async def test_branches_and_sub_agents_are_not_replaced(scene: Scene) -> None:
    """Field report 59: a retry, a branch and two sub-agents in one session keep what each of them holds."""
    agent = Agent(scene)
    for _ in range(2):
        await agent.turn()
    trunk = list(agent.messages)
    for _ in range(2):
        agent.messages = list(trunk)
        agent.num_turns += 10
        await agent.turn()
        assert agent.replaced() == []
    sub_agents = [Agent(scene), Agent(scene, system={"role": "system", "content": "You are a sub-agent."})]
    for number, sub_agent in enumerate(sub_agents):
        sub_agent.num_turns = 100 * (number + 1)
        for _ in range(2):
            await sub_agent.turn()
            assert sub_agent.replaced() == []
    agent.messages = [*trunk, user("on"), assistant("with it")]
    await agent.turn()
    assert agent.replaced() == []


async def test_pinned_and_foreign_leases_are_never_replaced(scene: Scene) -> None:
    agent = Agent(scene)
    for _ in range(2):
        last = await agent.turn()
    turn = scene.live.index.get(last.turn_id)
    assert turn is not None
    assert turn.lease is not None
    scene.live.index.rows.deadline[turn.slot] = float("inf")
    del agent.messages[1:3]
    await agent.turn()
    assert last.turn_id not in agent.replaced()
    stranger = Agent(scene, key="another-agent")
    stranger.messages = list(agent.messages)
    await stranger.turn()
    assert stranger.replaced() == []


async def test_lease_on_another_engine_is_released_once_the_turn_is_served(scene: Scene) -> None:
    """D supersedes only what it holds itself; the engine that held the old history is told by the router."""
    spare = await scene.add_engine("d1", Role.DECODE)
    await scene.publish()
    await scene.until_connected()
    agent = Agent(scene)
    for _ in range(3):
        last = await agent.turn()
    holder, other = (scene.decode, spare) if last.decode_engine == "d0" else (spare, scene.decode)
    scene.draining.add(holder.name)
    await scene.publish()
    del agent.messages[1:3]
    await agent.turn()
    assert other.received
    await eventually(lambda: holder.feed.releases, "the old engine is told")
    asked = [(release.key, release.reason) for release in holder.feed.releases]
    assert (f"lease-{last.turn_id}", "rewritten") in asked
    assert len(dict(asked)) == len(asked), "each is asked for once"


# ---------------------------------------------------------------- what the record says


@pytest.mark.parametrize("key", [KEY, ""], ids=["keyed", "without a key"])
@pytest.mark.parametrize("position", [0, 1, 3, 4])
async def test_first_differing_message_is_named(scene: Scene, position: int, key: str) -> None:
    """Field report 57 (vllm-project/vllm#36829, anthropics/claude-code#68900): a changing line, early or late."""
    agent = Agent(scene, key)
    for _ in range(2):
        await agent.turn()
    agent.messages[position] = {**agent.messages[position], "content": "changed"}
    scene.prefill.diverged_at_token = 32
    turn = await agent.turn()
    if not key and position == 0:
        assert turn.diverged_role == "", "nothing ties the two together, and nothing is offered"
        return
    assert turn.diverged_at_message == position
    assert turn.diverged_role == agent.messages[position]["role"]
    assert scene.metric(f'prompts_diverged_total{{role="{turn.diverged_role}"}}') == 1
    assert scene.metric('diverged_at_token_bucket{le="0"}') == 0
    assert scene.metric('diverged_at_token_bucket{le="64"}') == 1


async def test_turn_that_only_goes_on_has_not_diverged(scene: Scene) -> None:
    agent = Agent(scene)
    turns = [await agent.turn() for _ in range(3)]
    assert {(turn.diverged_at_message, turn.diverged_role) for turn in turns} == {(None, "")}
    assert scene.metric("diverged_at_token_count") == 0


async def test_changed_reply_is_named_by_what_the_engine_says(scene: Scene) -> None:
    """Field report 1 (vllm-project/vllm#43094): the client drops the thinking text of a reply.

    The router never saw the reply as a message, so only the engine's word tells that it isn't the one that D holds.
    """
    agent = Agent(scene)
    scene.prefill.num_prompt_tokens = scene.decode.num_prompt_tokens = 500
    await agent.turn()
    scene.prefill.diverged_at_token = 480
    turn = await agent.turn()
    assert (turn.diverged_at_message, turn.diverged_role) == (2, "assistant")
    await eventually(lambda: len(scene.access_lines()) == 2, "both turns are logged")
    assert scene.access_lines()[-1]["diverged_at_token"] == 480


async def test_template_that_prints_the_date_is_named(scene: Scene) -> None:
    """Field report 57 (dimagi/open-chat-studio#3625): all messages agree, and token ids part near the start."""
    agent = Agent(scene)
    scene.prefill.num_prompt_tokens = scene.decode.num_prompt_tokens = 500
    await agent.turn()
    scene.prefill.diverged_at_token = 0
    turn = await agent.turn()
    assert (turn.diverged_at_message, turn.diverged_role) == (None, "template")


async def test_other_tools_are_named(scene: Scene) -> None:
    agent = Agent(scene)
    await agent.turn(tools=[{"type": "function", "function": {"name": "one"}}])
    turn = await agent.turn(tools=[{"type": "function", "function": {"name": "two"}}])
    assert (turn.diverged_at_message, turn.diverged_role) == (None, "tools")


async def test_router_that_never_served_the_earlier_turn_names_nothing(scene: Scene) -> None:
    agent = Agent(scene)
    await agent.turn()
    await scene.stop_router()
    await scene.start_router()
    agent.messages[0] = {**agent.messages[0], "content": "changed"}
    scene.prefill.diverged_at_token = 0
    turn = await agent.turn()
    assert (turn.diverged_at_message, turn.diverged_role) == (None, "")
    assert agent.replaced() == []


async def test_skipped_pull_is_counted_by_its_reason_and_costs_the_turn_nothing(scene: Scene) -> None:
    """Field report 7 (vllm-project/vllm#55801): a metric shows what was skipped below the threshold."""
    agent = Agent(scene)
    await agent.turn()
    scene.prefill.decision = Decision.BELOW_THRESHOLD
    turn = await agent.turn()
    assert scene.metric('prefill_decisions_total{decision="recomputed_below_threshold"}') == 1
    assert turn.diverged_role == ""
    assert scene.decode.received[-1].offer == f"p-offer-{turn.turn_id}"
