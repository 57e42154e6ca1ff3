"""The websocket to the control plane: always retried, and complete again after each reconnect.

After hello and welcome everything that the control plane could have missed is told anew: the engine's facts, all
leases, and every event that it hasn't committed. Policy acknowledgements aren't kept: a welcome is followed by the
policy, which goes to the engine again and comes back as a fresh answer.
"""

import asyncio
import contextlib
import logging

import aiohttp
import msgspec

from connector.agent.backoff import Backoff, Occasionally
from connector.agent.conversation import AgentFacts, Conversation, ConversationError, receive_welcome, send
from connector.agent.environment import Secret
from connector.agent.events import EventBuffer
from connector.protocol import PROTOCOL_VERSION, PolicyAck, PolicyApplied

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 4 * 1024 * 1024


class ControlTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. ``probe``: websocket pings, which find a control plane that is frozen or gone without a word.

    ``stable_after``: a connection that lived this long resets the back-off, so that a peer that closes each one at once
    isn't called in a tight loop.
    """

    handshake: float = 10.0
    stable_after: float = 5.0
    probe: float = 10.0
    commit_timeout: float = 30.0
    first_retry: float = 0.5
    longest_retry: float = 8.0


class ControlSocket:
    """``run`` never returns. The other methods may be called at any time; they do nothing while disconnected."""

    def __init__(
        self,
        *,
        url: str,
        token: Secret,
        engine_name: str,
        facts: AgentFacts,
        events: EventBuffer,
        timing: ControlTiming | None = None,
    ) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._engine_name = engine_name
        self._facts = facts
        self._events = events
        self._timing = timing or ControlTiming()
        self._complaints = Occasionally()
        self._conversation: Conversation | None = None

    @property
    def is_connected(self) -> bool:
        """Welcomed, not merely connected."""
        return self._conversation is not None

    def engine_changed(self) -> None:
        if self._conversation is not None:
            self._conversation.post_status()

    def engine_synchronised(self) -> None:
        if self._conversation is not None and (snapshot := self._facts.lease_snapshot()) is not None:
            self._conversation.post(snapshot)

    def policy_applied(self, applied: PolicyApplied) -> None:
        if self._conversation is not None:
            ack = PolicyAck(
                enforcer=self._engine_name,
                revision=applied.revision,
                values=applied.values,
                unsupported_fields=applied.unsupported_fields,
            )
            self._conversation.post(ack)

    async def run(self, session: aiohttp.ClientSession) -> None:
        backoff = Backoff(self._timing.first_retry, self._timing.longest_retry)
        clock = asyncio.get_running_loop().time
        while True:
            started = clock()
            try:
                await self._connect(session)
                continue
            except aiohttp.WSServerHandshakeError as error:
                self._complain(_handshake_failure(error.status))
            except (aiohttp.ClientError, OSError, ConversationError) as error:
                self._complain(str(error) or type(error).__name__)
            self._facts.no_policy_to_come()
            if clock() - started > self._timing.stable_after:
                backoff.reset()
            await asyncio.sleep(backoff.next_delay())

    async def _connect(self, session: aiohttp.ClientSession) -> None:
        """One connection from handshake to its end: an exception, unless the next boot's events are due."""
        async with asyncio.timeout(self._timing.handshake):
            socket = await session.ws_connect(
                self._url, headers=self._headers, heartbeat=self._timing.probe, max_msg_size=MAX_FRAME_BYTES
            )
        try:
            await self._converse(socket)
        finally:
            if self._conversation is not None:
                logger.info("control_disconnected url=%s close_code=%s", self._url, socket.close_code)
            self._conversation = None
            with contextlib.suppress(TimeoutError):
                # A frozen peer never answers the close frame; leaving the block drops the connection.
                await asyncio.wait_for(socket.close(), 1.0)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        hello = self._facts.hello()
        async with asyncio.timeout(self._timing.handshake):
            await send(socket, hello)
            welcome = await receive_welcome(socket)
        if abs(welcome.protocol - PROTOCOL_VERSION) > 1:
            raise ConversationError(f"it speaks protocol {welcome.protocol}, this agent {PROTOCOL_VERSION}")
        logger.info("control_connected url=%s approved=%s", self._url, welcome.approved)
        self._facts.connection_opened()
        if not welcome.approved:
            self._facts.no_policy_to_come()
        self._events.committed(hello.boot, welcome.committed_sequence)
        self._events.rewind()
        self._conversation = Conversation(
            socket,
            welcome,
            self._facts,
            self._events,
            hello=hello,
            commit_timeout=self._timing.commit_timeout,
        )
        self.engine_changed()
        self.engine_synchronised()
        await self._conversation.run()

    def _complain(self, reason: str) -> None:
        if self._complaints.allows(reason):
            logger.error("control_unavailable url=%s reason=%r", self._url, reason)


def _handshake_failure(status: int) -> str:
    if status in (401, 403):
        return f"the agent token is refused (HTTP {status}); trying on, as it may be enrolled later"
    return f"the handshake was answered with HTTP {status}"
