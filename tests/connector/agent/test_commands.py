"""The command desk on its own: each id once, deadlines, and a link that breaks."""

import asyncio

from connector.agent.commands import MAX_REMEMBERED, MAX_RUNNING, CommandDesk
from connector.protocol import AgentToEngine, CommandDone, ReleaseLease


class Engine:
    def __init__(self) -> None:
        self.is_there = True
        self.asked: list[AgentToEngine] = []

    def send(self, message: AgentToEngine) -> bool:
        if self.is_there:
            self.asked.append(message)
        return self.is_there


def body(command_id: str, key: str = "a") -> ReleaseLease:
    return ReleaseLease(command_id=command_id, key=key)


def done(command_id: str, outcome: str = "released") -> CommandDone:
    return CommandDone(command_id=command_id, outcome=outcome)


async def started(desk: CommandDesk, command: ReleaseLease, deadline: float = 5.0) -> "asyncio.Task[CommandDone]":
    task = asyncio.create_task(desk.execute(command, deadline))
    await asyncio.sleep(0)
    return task


async def test_repeat_of_a_running_command_joins_it() -> None:
    engine = Engine()
    desk = CommandDesk(engine.send)
    first, second = await started(desk, body("c1")), await started(desk, body("c1"))
    desk.answered(done("c1"))
    assert await first == await second == done("c1")
    assert engine.asked == [body("c1")]


async def test_id_used_for_another_command_is_refused_while_running_and_after() -> None:
    engine = Engine()
    desk = CommandDesk(engine.send)
    first = await started(desk, body("c1"))
    assert (await desk.execute(body("c1", key="b"), 5.0)).outcome == "failed"
    desk.answered(done("c1"))
    await first
    assert (await desk.execute(body("c1", key="b"), 5.0)).outcome == "failed"
    assert engine.asked == [body("c1")]


async def test_passed_deadline_never_reaches_the_engine() -> None:
    engine = Engine()
    assert (await CommandDesk(engine.send).execute(body("c1"), 0.0)).outcome == "failed"
    assert engine.asked == []


async def test_broken_link_fails_what_is_open_and_a_repeat_asks_again() -> None:
    engine = Engine()
    desk = CommandDesk(engine.send)
    first = await started(desk, body("c1"))
    desk.link_lost()
    assert (await first).detail == "the link broke before the engine answered"
    again = await started(desk, body("c1"))
    desk.answered(done("c1", "not_found"))
    assert (await again).outcome == "not_found"
    assert len(engine.asked) == 2


async def test_answer_to_nothing_is_dropped() -> None:
    desk = CommandDesk(Engine().send)
    desk.answered(done("never-asked"))
    task = await started(desk, body("never-asked"))
    assert not task.done()
    desk.link_lost()
    await task


async def test_cancelled_caller_does_not_take_the_command_from_others() -> None:
    engine = Engine()
    desk = CommandDesk(engine.send)
    first, second = await started(desk, body("c1")), await started(desk, body("c1"))
    first.cancel()
    await asyncio.wait([first])
    desk.answered(done("c1"))
    assert await second == done("c1")


async def test_only_so_many_commands_wait_and_only_so_many_answers_are_kept() -> None:
    engine = Engine()
    desk = CommandDesk(engine.send)
    tasks = [await started(desk, body(f"open-{number}")) for number in range(MAX_RUNNING)]
    assert "already wait" in (await desk.execute(body("one-more"), 5.0)).detail
    desk.link_lost()
    await asyncio.gather(*tasks)
    for number in range(MAX_REMEMBERED + 1):
        task = await started(desk, body(f"c{number}"))
        desk.answered(done(f"c{number}"))
        await task
    engine.asked.clear()
    assert (await desk.execute(body("c1"), 5.0)).outcome == "released"
    assert engine.asked == []
    forgotten = await started(desk, body("c0"))
    assert engine.asked == [body("c0")]
    desk.link_lost()
    await forgotten
