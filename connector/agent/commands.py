"""Runs commands at the engine: each command id once, its answer remembered, and never past its deadline."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from connector.protocol import AgentToEngine, CommandDone, ExtendLease, ReleaseLease, ResetCache

MAX_REMEMBERED = 4096
MAX_RUNNING = 1024

CommandBody = ReleaseLease | ExtendLease | ResetCache


class _Running(msgspec.Struct):
    body: CommandBody
    answer: asyncio.Future[CommandDone]


class CommandDesk:
    """Answers from the engine are kept for repeats of the same command; failures to reach it are not, so that a repeat
    tries again. A command that ran into its deadline stays open: its late answer is what a repeat gets.
    """

    def __init__(self, send: Callable[[AgentToEngine], bool]) -> None:
        self._send = send
        self._running: dict[str, _Running] = {}
        self._finished: OrderedDict[str, tuple[CommandBody, CommandDone]] = OrderedDict()

    async def execute(self, body: CommandBody, deadline_seconds: float) -> CommandDone:
        """What happened at the engine, or ``failed`` with the reason in ``detail``."""
        finished = self._finished.get(body.command_id)
        running = self._running.get(body.command_id)
        known = finished[0] if finished else running.body if running else body
        if known != body:
            return _failed(body, "this command id was used for another command")
        if finished:
            return finished[1]
        if deadline_seconds <= 0:
            return _failed(body, "the deadline had passed before the engine was asked")
        if running is None:
            if len(self._running) >= MAX_RUNNING:
                return _failed(body, f"{MAX_RUNNING} commands already wait for the engine")
            if not self._send(body):
                return _failed(body, "the engine is not connected, or too old for this command")
            running = _Running(body, asyncio.get_running_loop().create_future())
            self._running[body.command_id] = running
        return await self._outcome(running, deadline_seconds)

    async def _outcome(self, running: _Running, deadline_seconds: float) -> CommandDone:
        done, _ = await asyncio.wait([running.answer], timeout=deadline_seconds)
        if not done:
            return _failed(running.body, f"no answer from the engine within {deadline_seconds:g} s")
        return running.answer.result()

    def answered(self, done: CommandDone) -> None:
        """An answer from the engine; one to a question that isn't open is dropped."""
        running = self._running.pop(done.command_id, None)
        if running is None:
            return
        self._finished[done.command_id] = (running.body, done)
        if len(self._finished) > MAX_REMEMBERED:
            self._finished.popitem(last=False)
        running.answer.set_result(done)

    def link_lost(self) -> None:
        """Open commands fail: the engine may or may not have run them, and a repeat is safe as each is idempotent."""
        for running in self._running.values():
            running.answer.set_result(_failed(running.body, "the link broke before the engine answered"))
        self._running.clear()


def _failed(body: CommandBody, detail: str) -> CommandDone:
    return CommandDone(command_id=body.command_id, outcome="failed", detail=detail)
