"""The socket of a router."""

import asyncio
import logging
from typing import Any

import msgspec

from connector.protocol import (
    PROTOCOL_VERSION,
    ApiKeyHash,
    EventsCommitted,
    FleetSnapshot,
    PolicyAck,
    RouterHello,
    RouterStatus,
    Welcome,
)
from controlplane.accounts.models import TokenKind
from controlplane.accounts.selectors import router_keys
from controlplane.fleet import liveness
from controlplane.fleet.groups import ROUTERS
from controlplane.fleet.ingest import RawEventBatch, ingest_router_batch
from controlplane.fleet.models import Router
from controlplane.fleet.selectors import fleet_engines
from controlplane.fleet.sockets import PeerConsumer, in_thread
from controlplane.policy.actions import expect_ack, record_ack
from controlplane.policy.models import EnforcerKind
from controlplane.policy.selectors import current_book

logger = logging.getLogger(__name__)

Frame = RouterHello | RouterStatus | RawEventBatch | PolicyAck

SNAPSHOT_INTERVAL_SECONDS = 0.25


class RouterConsumer(PeerConsumer):
    """Tells a router the whole fleet at connect and on every change, at most four times a second."""

    token_kind = TokenKind.ROUTER
    decoder = msgspec.json.Decoder(Frame)

    _teller: asyncio.Task[None] | None = None
    _told: FleetSnapshot | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_stale = asyncio.Event()

    async def handle(self, frame: Frame) -> None:
        match frame:
            case RouterHello():
                await self.on_hello(frame)
            case _ if not self.peer_name:
                await self.refuse("the first frame must be a hello")
            case RouterStatus():
                await self.on_status(frame)
            case PolicyAck():
                await in_thread(self.store_ack, frame)
            case RawEventBatch():
                await self.on_batch(frame)

    async def on_hello(self, hello: RouterHello) -> None:
        if reason := self.refusal_of(hello.protocol, hello.router_name):
            await self.refuse(reason)
            return
        router: Router = await in_thread(liveness.register_router, hello, connection=self.channel_name)
        self.greeted(hello.router_name)
        await self.say(Welcome(protocol=PROTOCOL_VERSION, committed_sequence=router.committed_sequence, approved=True))
        # Joined before the first snapshot is read: a change in between is told twice rather than never.
        await self.channel_layer.group_add(ROUTERS, self.channel_name)
        self._is_stale.set()
        self._teller = self._teller or asyncio.create_task(self.tell_fleet())

    async def on_status(self, status: RouterStatus) -> None:
        """Each heartbeat also looks for news, for a message of the channel layer may be lost."""
        if await in_thread(liveness.record_router_status, self.peer_name, status, connection=self.channel_name):
            self._is_stale.set()
        else:
            await self.hello_again("another connection speaks for this router")

    async def tell_fleet(self) -> None:
        """Sends a snapshot whenever it differs from the last one, and lets further news gather meanwhile."""
        try:
            while True:
                await self._is_stale.wait()
                self._is_stale.clear()
                snapshot = await in_thread(self.read_snapshot)
                if snapshot != self._told:
                    self._told = snapshot
                    await self.say(snapshot)
                await asyncio.sleep(SNAPSHOT_INTERVAL_SECONDS)
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("event=snapshot_failed router=%s", self.peer_name)
            await self.hello_again("a snapshot could not be made")

    def read_snapshot(self) -> FleetSnapshot:
        book = current_book()
        values = book.effective()
        if self._told is None:
            expect_ack(kind=EnforcerKind.ROUTER, enforcer=self.peer_name, revision=book.number, values=values)
        return FleetSnapshot(
            revision=book.number,
            values=values,
            model_patches=book.of_kind("model"),
            tenant_patches=book.of_kind("tenant"),
            session_patches=book.of_kind("session"),
            engines=fleet_engines(),
            api_keys=tuple(
                ApiKeyHash(key_id=str(key.pk), sha256=key.sha256, tenant=key.tenant, operator=key.operator)
                for key in router_keys()
            ),
        )

    async def on_batch(self, batch: RawEventBatch) -> None:
        sequence = await in_thread(ingest_router_batch, self.peer_name, batch, connection=self.channel_name)
        if sequence is None:
            await self.hello_again("another connection or boot speaks for this router")
        else:
            await self.say(EventsCommitted(boot=batch.boot, sequence=sequence))

    def store_ack(self, ack: PolicyAck) -> None:
        told = self._told.values if self._told and self._told.revision == ack.revision else None
        record_ack(ack, kind=EnforcerKind.ROUTER, enforcer=self.peer_name, told=told)

    async def fleet_changed(self, message: dict[str, Any]) -> None:
        self._is_stale.set()

    async def policy_changed(self, message: dict[str, Any]) -> None:
        self._is_stale.set()

    async def disconnect(self, code: int) -> None:
        if self._teller:
            self._teller.cancel()
        if self.peer_name:
            await self.channel_layer.group_discard(ROUTERS, self.channel_name)
        await super().disconnect(code)

    def note_disconnect(self) -> None:
        liveness.disconnect_router(self.peer_name, connection=self.channel_name)
