"""The socket of an engine's agent."""

import asyncio
import time
from typing import Any

import msgspec

from connector.protocol import (
    PROTOCOL_VERSION,
    SINCE,
    AgentHello,
    AgentStatus,
    CommandDone,
    EventsCommitted,
    LeaseSnapshot,
    PolicyAck,
    SetPeers,
    SetPolicy,
    Welcome,
)
from controlplane.accounts.models import TokenKind
from controlplane.fleet import liveness
from controlplane.fleet.commands import settle_operation
from controlplane.fleet.groups import AGENTS, agent_group
from controlplane.fleet.ingest import RawEventBatch, ingest_agent_batch, reconcile_agent_leases
from controlplane.fleet.models import Agent, Engine
from controlplane.fleet.peers import PeerFrame, newest_peers
from controlplane.fleet.sockets import PeerConsumer, in_hello_thread, in_thread
from controlplane.policy.actions import expect_ack, record_ack
from controlplane.policy.effective import Scope, engine_scopes
from controlplane.policy.models import EnforcerKind
from controlplane.policy.selectors import RevisionKey, cached_book, current_book, recent_key

Frame = AgentHello | AgentStatus | LeaseSnapshot | RawEventBatch | PolicyAck | CommandDone


PEERS_INTERVAL_SECONDS = 0.25
"""Restarts of a fleet come in crowds; what changes within the interval is told once."""

PEERS_MAX_AGE_SECONDS = 1.0


class AgentConsumer(PeerConsumer):
    """Speaks for one engine: the newest connection does, an older one of the same engine is closed.

    An engine that awaits approval is shown with its state, but gets no policy, and its events stay with its agent.
    """

    token_kind = TokenKind.AGENT
    decoder = msgspec.json.Decoder(Frame)

    approved = False
    told: SetPolicy | None = None
    last_status: AgentStatus | None = None
    scopes: tuple[Scope, ...] = ()
    incarnation = ""
    protocol = 0
    told_peers: PeerFrame | None = None
    _peers_task: asyncio.Task[None] | None = None

    async def handle(self, frame: Frame) -> None:
        match frame:
            case AgentHello():
                await self.on_hello(frame)
            case _ if not self.peer_name:
                await self.refuse("the first frame must be a hello")
            case AgentStatus():
                await self.on_status(frame)
            case CommandDone():
                await in_thread(settle_operation, self.peer_name, frame)
            case PolicyAck():
                await in_thread(self.store_ack, frame)
            case LeaseSnapshot() if self.approved:
                if not await in_thread(reconcile_agent_leases, self.peer_name, frame, connection=self.channel_name):
                    await self.hello_again("another connection speaks for this engine")
            case RawEventBatch() if self.approved:
                await self.on_batch(frame)

    async def on_hello(self, hello: AgentHello) -> None:
        if reason := self.refusal_of(hello.protocol, hello.engine_name):
            await self.refuse(reason)
            return
        # Joined before the policy is read: a revision published in between is told twice rather than never.
        await self.channel_layer.group_add(AGENTS, self.channel_name)
        agent, policy = await in_hello_thread(self.enroll, hello)
        own_group = agent_group(agent.engine_id)
        await self.channel_layer.group_send(own_group, {"type": "replaced", "connection": self.channel_name})
        await self.channel_layer.group_add(own_group, self.channel_name)
        await self.say(
            Welcome(protocol=PROTOCOL_VERSION, committed_sequence=agent.committed_sequence, approved=self.approved)
        )
        self.protocol = hello.protocol
        await self.tell_peers(time.monotonic())
        if policy:
            await self.tell(policy)

    def enroll(self, hello: AgentHello) -> tuple[Agent, SetPolicy | None]:
        agent = liveness.register_agent(hello, connection=self.channel_name, auto_approve=self.token.auto_approve)
        self.engine_id = agent.engine_id
        self.approved, self.incarnation = agent.engine.approved, agent.engine.incarnation
        self.greeted(hello.engine_name)
        return agent, self.resolve_policy(agent.engine) if self.approved else None

    def resolve_policy(self, engine: Engine) -> SetPolicy:
        """What holds for the engine now; it has to confirm it, whatever it confirmed before."""
        book = current_book()
        self.scopes = engine_scopes(name=engine.name, model=engine.model, role=engine.role)
        values = book.effective(*self.scopes)
        expect_ack(kind=EnforcerKind.ENGINE, enforcer=self.peer_name, revision=book.number, values=values)
        return SetPolicy(revision=book.number, values=values)

    def resolve_policy_anew(self) -> SetPolicy:
        return self.resolve_policy(Engine.objects.get(name=self.peer_name))

    async def tell_policy(self, key: RevisionKey) -> None:
        """A new revision. The first socket of a process reads it, the others find it: no query each for thousands."""
        if self.approved and (self.told is None or key.number > self.told.revision):
            book = cached_book(key)
            if book is None:
                book = await in_thread(current_book)
            await self.tell(SetPolicy(revision=book.number, values=book.effective(*self.scopes)))

    async def tell(self, policy: SetPolicy) -> None:
        self.told = policy
        await self.say(policy)

    async def tell_peers(self, moment: float) -> None:
        """The list as of ``moment`` or later, if it differs from the last one. A hello is answered with it first: the
        policy lets a starting engine go on."""
        if not self.approved or self.protocol < SINCE[SetPeers]:
            return
        frame = await in_thread(newest_peers, moment)
        if frame is not self.told_peers:
            self.told_peers = frame
            await self.say_text(frame.text)

    async def on_status(self, status: AgentStatus) -> None:
        """Each heartbeat also checks revision and peers, for a message of the channel layer may be lost."""
        stored = await in_thread(
            liveness.record_status, self.peer_name, status, connection=self.channel_name, previous=self.last_status
        )
        self.last_status = status
        if not stored:
            await self.hello_again("the engine was given up, or another connection speaks for it")
        elif status.incarnation and status.incarnation != self.incarnation:
            self.incarnation = status.incarnation
            if self.approved:
                await self.tell(await in_thread(self.resolve_policy_anew))
        elif key := await in_thread(recent_key):
            await self.tell_policy(key)
        await self.tell_peers(time.monotonic() - PEERS_MAX_AGE_SECONDS)

    async def on_batch(self, batch: RawEventBatch) -> None:
        sequence = await in_thread(ingest_agent_batch, self.peer_name, batch, connection=self.channel_name)
        if sequence is None:
            await self.hello_again("another connection or boot speaks for this engine")
        else:
            await self.say(EventsCommitted(boot=batch.boot, sequence=sequence))

    def store_ack(self, ack: PolicyAck) -> None:
        told = self.told.values if self.told and self.told.revision == ack.revision else None
        record_ack(ack, kind=EnforcerKind.ENGINE, enforcer=self.peer_name, told=told)

    async def policy_changed(self, message: dict[str, Any]) -> None:
        await self.tell_policy(RevisionKey.of_message(message))

    async def fleet_changed(self, message: dict[str, Any]) -> None:
        if self._peers_task is None:
            self._peers_task = asyncio.create_task(self._tell_peers_soon())

    async def _tell_peers_soon(self) -> None:
        await asyncio.sleep(PEERS_INTERVAL_SECONDS)
        self._peers_task = None
        await self.dispatch({"type": "peers.due"})

    async def peers_due(self, message: dict[str, Any]) -> None:
        await self.tell_peers(time.monotonic())

    async def command_send(self, message: dict[str, Any]) -> None:
        await self.send(text_data=message["frame"])

    async def reconnect(self, message: dict[str, Any]) -> None:
        await self.hello_again(message["reason"])

    async def replaced(self, message: dict[str, Any]) -> None:
        if message["connection"] != self.channel_name:
            await self.hello_again("another connection speaks for this engine")

    async def disconnect(self, code: int) -> None:
        if self._peers_task is not None:
            self._peers_task.cancel()
        await self.channel_layer.group_discard(AGENTS, self.channel_name)
        if self.peer_name:
            await self.channel_layer.group_discard(agent_group(self.engine_id), self.channel_name)
        await super().disconnect(code)

    def note_disconnect(self) -> None:
        liveness.disconnect_agent(self.peer_name, connection=self.channel_name)
