"""An agent for one engine that speaks the real protocol over a real socket, with answers that a test steers."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from connector.protocol import (
    PROTOCOL_VERSION,
    AgentHello,
    AgentStatus,
    ControlToAgent,
    EngineInfo,
    EngineLoad,
    EngineState,
    LeaseSnapshot,
    PolicyAck,
    PolicyValues,
    Role,
    SetPolicy,
)

HEARTBEAT_SECONDS = 1.0


class ScriptedAgent:
    """Joins on entering and leaves on exit. ``holds_acks`` keeps answers back; ``reads_back`` falsifies them."""

    def __init__(self, ws_url: str, token: str, *, name: str, role: Role) -> None:
        self._address = f"{ws_url}/ws/agent/"
        self._token = token
        self.info = EngineInfo(
            name=name,
            incarnation=f"incarnation-of-{name}",
            role=role,
            model="tiny-llama",
            block_size=32,
            num_blocks=2048,
            bytes_per_block=393_216,
            kv_dtype="bfloat16",
            vllm_version="0.32.0",
            connector_version="0.1.0",
        )
        self.load = EngineLoad(
            num_free_blocks=1200,
            num_blocks=2048,
            num_leases=2,
            num_leased_blocks=480,
            num_quarantined_blocks=24,
            num_running=1,
            num_waiting=0,
            num_dropped_events=0,
        )
        self.holds_acks = False
        self.reads_back: PolicyValues | None = None
        self._held: list[SetPolicy] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self._token}"}
        self._stack = contextlib.AsyncExitStack()
        self._socket: ClientConnection = await self._stack.enter_async_context(
            connect(self._address, additional_headers=headers, proxy=None)
        )
        name = self.info.name
        hello = AgentHello(
            protocol=PROTOCOL_VERSION,
            boot=f"boot-of-{name}",
            engine_name=name,
            engine_url="http://127.0.0.1:1",
            feed_url="ws://127.0.0.1:1/feed",
            engine=self.info,
            agent_version="0.1.0",
        )
        await self._say(hello)
        await self._say(LeaseSnapshot(incarnation=self.info.incarnation, leases=()))
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._beat())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def release_acks(self) -> None:
        self.holds_acks = False
        held, self._held = self._held, []
        for policy in held:
            await self._ack(policy)

    async def _say(self, message: msgspec.Struct) -> None:
        await self._socket.send(msgspec.json.encode(message).decode())

    async def _listen(self) -> None:
        async for text in self._socket:
            message = msgspec.json.decode(text, type=ControlToAgent)
            if not isinstance(message, SetPolicy):
                continue
            if self.holds_acks:
                self._held.append(message)
            else:
                await self._ack(message)

    async def _ack(self, policy: SetPolicy) -> None:
        values = self.reads_back or policy.values
        await self._say(PolicyAck(enforcer=self.info.name, revision=policy.revision, values=values))

    async def _beat(self) -> None:
        while True:
            await self._say(AgentStatus(state=EngineState.READY, incarnation=self.info.incarnation, load=self.load))
            await asyncio.sleep(HEARTBEAT_SECONDS)
