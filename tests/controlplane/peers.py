"""Agents and routers as they speak on the wire: real sockets, real frames."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import uuid4

import aiohttp
import msgspec

from connector.protocol import (
    PROTOCOL_VERSION,
    AgentHello,
    AgentStatus,
    ControlToAgent,
    ControlToRouter,
    EngineInfo,
    EngineLoad,
    EngineState,
    EventBatch,
    LeaseGranted,
    LeaseKind,
    NumberedEvent,
    PolicyAck,
    PolicyValues,
    Role,
    RouterHello,
)

M = TypeVar("M", bound=msgspec.Struct)

DEADLINE_SECONDS = 10.0


class Peer:
    """One open socket; ``next_of`` waits for the next frame of a kind and drops what comes before."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, frames: Any) -> None:
        self.socket = socket
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(frames)

    async def say(self, message: msgspec.Struct) -> None:
        await self.socket.send_str(msgspec.json.encode(message).decode())

    async def next_frame(self) -> Any:
        async with asyncio.timeout(DEADLINE_SECONDS):
            frame = await self.socket.receive()
        assert frame.type == aiohttp.WSMsgType.TEXT, f"closed with {frame.data} {frame.extra}"
        return self._decoder.decode(frame.data)

    async def next_of(self, kind: type[M]) -> M:
        while True:
            message = await self.next_frame()
            if isinstance(message, kind):
                return message

    async def next_close(self) -> int:
        """The code with which the server closes; frames before that are dropped."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not self.socket.closed:
                await self.socket.receive()
        assert self.socket.close_code is not None
        return self.socket.close_code


@asynccontextmanager
async def connected(url: str, path: str, secret: str, frames: Any) -> AsyncIterator[Peer]:
    headers = {"Authorization": f"Bearer {secret}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.ws_connect(url + path, max_msg_size=0) as socket,
    ):
        yield Peer(socket, frames)


def agent_socket(url: str, secret: str) -> Any:
    return connected(url, "/ws/agent/", secret, ControlToAgent)


def router_socket(url: str, secret: str) -> Any:
    return connected(url, "/ws/router/", secret, ControlToRouter)


def engine_info(name: str = "decode-0", **changes: Any) -> EngineInfo:
    info = EngineInfo(
        name=name,
        incarnation="incarnation-1",
        role=Role.DECODE,
        model="tiny",
        block_size=32,
        num_blocks=1000,
        bytes_per_block=4096,
        kv_dtype="float16",
        vllm_version="0.32.0",
        connector_version="0.1.0",
    )
    return msgspec.structs.replace(info, **changes)


def agent_hello(name: str = "decode-0", *, boot: str = "boot-1", **changes: Any) -> AgentHello:
    hello = AgentHello(
        protocol=PROTOCOL_VERSION,
        boot=boot,
        engine_name=name,
        engine_url="http://127.0.0.1:8200",
        feed_url="ws://127.0.0.1:8210/feed",
        engine=engine_info(name),
        agent_version="0.1.0",
    )
    return msgspec.structs.replace(hello, **changes)


def router_hello(name: str = "router-0", *, boot: str = "boot-1", **changes: Any) -> RouterHello:
    hello = RouterHello(protocol=PROTOCOL_VERSION, boot=boot, router_name=name, router_version="0.1.0")
    return msgspec.structs.replace(hello, **changes)


def status(state: EngineState = EngineState.READY, **changes: Any) -> AgentStatus:
    load = EngineLoad(
        num_free_blocks=900,
        num_blocks=1000,
        num_leases=1,
        num_leased_blocks=100,
        num_quarantined_blocks=0,
        num_running=0,
        num_waiting=0,
        num_dropped_events=0,
    )
    return msgspec.structs.replace(AgentStatus(state=state, incarnation="incarnation-1", load=load), **changes)


def ack_of(enforcer: str, revision: int, values: PolicyValues, **changes: Any) -> PolicyAck:
    return PolicyAck(enforcer=enforcer, revision=revision, values=msgspec.structs.replace(values, **changes))


def lease(lease_id: str = "lease-1", **changes: Any) -> LeaseGranted:
    granted = LeaseGranted(
        lease_id=lease_id,
        kind=LeaseKind.SESSION,
        session_id="session-1",
        turn_id=str(uuid4()),
        tenant="default",
        num_tokens=320,
        num_blocks=10,
        num_bytes=40960,
        remaining_seconds=480.0,
    )
    return msgspec.structs.replace(granted, **changes)


def batch(*events: Any, first: int = 1, boot: str = "boot-1", incarnation: str = "incarnation-1") -> EventBatch:
    """Events numbered from ``first``, each 5 ms old."""
    numbered = tuple(
        NumberedEvent(sequence=first + offset, age_ms=5.0, event=event) for offset, event in enumerate(events)
    )
    return EventBatch(boot=boot, incarnation=incarnation, events=numbered)
