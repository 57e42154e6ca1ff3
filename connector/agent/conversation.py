"""One welcomed connection to the control plane, from the first status to its end.

A single writer sends everything in the order in which it happened, statuses and snapshots before event batches, so that
the control plane knows an incarnation before it gets events of it.
"""

import asyncio
import logging
from collections import deque
from typing import Protocol

import aiohttp
import msgspec

from connector.agent.events import EventBuffer
from connector.protocol import (
    AgentHello,
    AgentStatus,
    AgentToControl,
    Command,
    CommandDone,
    ControlToAgent,
    EventsCommitted,
    LeaseSnapshot,
    Refused,
    SetPeers,
    SetPolicy,
    Welcome,
)

logger = logging.getLogger(__name__)

MAX_OUTBOX = 4096
MAX_OPEN_COMMANDS = 256
LONGEST_DEADLINE_SECONDS = 3600.0
HEARTBEAT_RANGE = (0.05, 30.0)

_decoder: msgspec.json.Decoder[ControlToAgent] = msgspec.json.Decoder(ControlToAgent)


class ConversationError(Exception):
    """The connection can't go on; the caller closes it and tries anew."""


class AgentFacts(Protocol):
    """What the control plane's side asks and tells the rest of the agent."""

    def hello(self) -> AgentHello: ...

    def status(self) -> AgentStatus:
        """With ``engine`` whenever it is known."""

    def lease_snapshot(self) -> LeaseSnapshot | None: ...

    def connection_opened(self) -> None: ...

    async def accept_policy(self, policy: SetPolicy) -> None: ...

    async def accept_peers(self, peers: SetPeers) -> None: ...

    def no_policy_to_come(self) -> None:
        """The control plane can't be reached, or has no policy for an engine that it hasn't approved."""

    async def execute(self, command: Command, deadline_seconds: float) -> CommandDone: ...


class Conversation:
    """``hello`` is what the connection was opened with: it says whose events may be sent on it."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        welcome: Welcome,
        facts: AgentFacts,
        events: EventBuffer,
        *,
        hello: AgentHello,
        commit_timeout: float,
    ) -> None:
        self._socket = socket
        self._facts = facts
        self._events = events
        self._approved = welcome.approved
        self._heartbeat = min(max(welcome.heartbeat_seconds, HEARTBEAT_RANGE[0]), HEARTBEAT_RANGE[1])
        self._boot = hello.boot
        self._told_incarnation = hello.engine.incarnation if hello.engine else ""
        self._commit_timeout = commit_timeout
        self._outbox: deque[AgentToControl] = deque()
        self._wake = events.changed
        self._sent_at = 0.0
        self._commands: set[asyncio.Task[None]] = set()

    def post(self, message: AgentToControl) -> None:
        """Queues a message for the writer. A control plane that reads nothing loses the connection, not us memory."""
        if len(self._outbox) < MAX_OUTBOX:
            self._outbox.append(message)
            self._wake.set()

    def post_status(self) -> None:
        """The engine's facts go along when the control plane doesn't have them yet."""
        status = self._facts.status()
        if status.engine is None or status.engine.incarnation == self._told_incarnation:
            status = msgspec.structs.replace(status, engine=None)
        else:
            self._told_incarnation = status.engine.incarnation
        self.post(status)

    async def run(self) -> None:
        """Returns when no event of the hello's boot is left but one of another, which takes another hello.

        Any other end is a ``ConversationError`` or a connection error.
        """
        tasks = [asyncio.create_task(part) for part in (self._read(), self._write(), self._beat())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, *self._commands):
                task.cancel()
            await asyncio.gather(*tasks, *self._commands, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat)
            self.post_status()

    # ---------------------------------------------------------------- out

    async def _write(self) -> None:
        while self._events.boot == self._boot:
            self._wake.clear()
            while self._outbox:
                await send(self._socket, self._outbox.popleft())
            if self._approved:
                await self._send_batch()
            if not self._wake.is_set():
                await self._wait()

    async def _send_batch(self) -> None:
        batch = self._events.next_batch(self._boot)
        if batch is not None:
            self._sent_at = asyncio.get_running_loop().time()
            await send(self._socket, batch)

    async def _wait(self) -> None:
        """Until there is something to send; a control plane that commits nothing for too long is left."""
        deadline = self._sent_at + self._commit_timeout if self._events.num_in_flight else None
        try:
            async with asyncio.timeout_at(deadline):
                await self._wake.wait()
        except TimeoutError as error:
            raise ConversationError(f"no events were committed for {self._commit_timeout:g} s") from error

    # ---------------------------------------------------------------- in

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                raise ConversationError(f"a {message.type.name} frame instead of text")
            try:
                received = _decoder.decode(message.data)
            except msgspec.MsgspecError as error:
                # Frames don't depend on each other, and a newer control plane may say what this agent doesn't know.
                logger.warning("control_message_ignored error=%s", error)
                continue
            await self._take(received)
        raise ConversationError(f"closed by the control plane, code {self._socket.close_code}")

    async def _take(self, message: ControlToAgent) -> None:
        match message:
            case EventsCommitted(boot=boot, sequence=sequence):
                self._events.committed(boot, sequence)
            case SetPolicy():
                await self._facts.accept_policy(message)
            case SetPeers():
                await self._facts.accept_peers(message)
            case Command():
                self._start_command(message)
            case Welcome(approved=approved):
                self._approved = approved
                self._wake.set()
            case Refused(reason=reason):
                raise ConversationError(f"refused: {reason}")

    def _start_command(self, command: Command) -> None:
        if len(self._commands) >= MAX_OPEN_COMMANDS:
            detail = f"{MAX_OPEN_COMMANDS} commands already wait for the engine"
            self.post(CommandDone(command_id=command.body.command_id, outcome="failed", detail=detail))
            return
        task = asyncio.create_task(self._run_command(command))
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    async def _run_command(self, command: Command) -> None:
        deadline = min(command.deadline_seconds, LONGEST_DEADLINE_SECONDS)
        self.post(await self._facts.execute(command, deadline))


async def send(socket: aiohttp.ClientWebSocketResponse, message: AgentToControl) -> None:
    await socket.send_str(msgspec.json.encode(message).decode())


async def receive_welcome(socket: aiohttp.ClientWebSocketResponse) -> Welcome:
    """The answer to the hello. Raises ``ConversationError`` when it isn't a welcome."""
    message = await socket.receive()
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise ConversationError(f"closed before the welcome, code {socket.close_code}")
    try:
        answer = _decoder.decode(message.data)
    except msgspec.MsgspecError as error:
        raise ConversationError(f"an answer to the hello that can't be read: {error}") from error
    if isinstance(answer, Refused):
        raise ConversationError(f"refused: {answer.reason}")
    if not isinstance(answer, Welcome):
        raise ConversationError(f"{type(answer).__name__} came before the welcome")
    return answer
