"""The agent's parts, wired together, and their life from start to a clean end."""

import asyncio
import logging
import signal

import aiohttp
import msgspec
from aiohttp import web

from connector.agent.commands import CommandDesk
from connector.agent.control_socket import ControlSocket, ControlTiming
from connector.agent.engine_link import EngineLink, LinkTiming
from connector.agent.environment import ConfigurationError, Options
from connector.agent.events import BufferLimits, EventBuffer
from connector.agent.export import ExportTiming, SpanExport, SpanQueue
from connector.agent.feed import FeedDoor, FeedHub, FeedLimits
from connector.agent.leases import LeaseTable
from connector.agent.mirror import EngineMirror
from connector.agent.peers import PeerDesk
from connector.agent.policy import PolicyDesk
from connector.agent.spans import SpanRecorder
from connector.agent.spool import Spool
from connector.agent.state import StateDirectory
from connector.identity import uuid7
from connector.protocol import (
    PROTOCOL_VERSION,
    AgentHello,
    AgentStatus,
    Command,
    CommandDone,
    EngineState,
    LeaseSnapshot,
    SetPeers,
    SetPolicy,
)

logger = logging.getLogger(__name__)

AGENT_VERSION = "0.1.0"

LAST_FLUSH_SECONDS = 2.0

FIRST_POLICY_SECONDS = 2.0
"""How long a starting agent waits for the control plane before it goes by its disk; an engine's start waits longer."""


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """Times and bounds of all parts; tests shorten them."""

    link: LinkTiming = LinkTiming()
    control: ControlTiming = ControlTiming()
    export: ExportTiming = ExportTiming()
    feed: FeedLimits = FeedLimits()
    buffer: BufferLimits = BufferLimits()


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``GET /healthz``: holds no secret and no session."""

    engine_name: str
    engine_state: EngineState
    incarnation: str
    control_plane_connected: bool
    policy_revision: int | None
    applied_revision: int | None
    num_peers: int | None
    num_leases: int
    num_routers: int
    num_pending_events: int
    num_dropped_events: int
    num_failed_spool_writes: int
    num_waiting_spans: int
    num_exported_spans: int
    num_dropped_spans: int


class Agent:
    """One engine's sidecar. ``run`` ends when cancelled; ``feed_port`` is known once ``started`` is set."""

    def __init__(self, options: Options, tuning: Tuning | None = None) -> None:
        tuning = tuning or Tuning()
        self.options = options
        self.boot = str(uuid7())
        self.started = asyncio.Event()
        self.feed_port = options.feed_port
        self._state = StateDirectory(options.state_dir)
        self._spool = Spool(self._state.spool_path)
        self.events = EventBuffer(self.boot, self._spool, tuning.buffer)
        self.span_queue = SpanQueue()
        self._export = SpanExport(self.span_queue, options.otlp_endpoint, options.agent_token, tuning.export)
        self.leases = LeaseTable()
        self.hub = FeedHub(self.boot, options.engine_name, self.leases.offers, tuning.feed)
        self.link = EngineLink(options.link_path, options.engine_name, tuning.link)
        self._commands = CommandDesk(self.link.send)
        self.policy = PolicyDesk(self._state, self.link.send)
        self.peers = PeerDesk(self._state, self.link.send)
        self.control = ControlSocket(
            url=options.control_socket_url,
            token=options.agent_token,
            engine_name=options.engine_name,
            facts=self,
            events=self.events,
            timing=tuning.control,
        )
        self.mirror = EngineMirror(
            leases=self.leases,
            events=self.events,
            hub=self.hub,
            spans=SpanRecorder(options.engine_name, self.boot, self.span_queue),
            commands=self._commands,
            policy=self.policy,
            peers=self.peers,
            audience=self.control,
        )

    async def run(self) -> None:
        """Raises ``ConfigurationError`` when the feed can't listen; anything else that ends it is a bug."""
        try:
            async with aiohttp.ClientSession() as session:
                runner = await self._serve_feed()
                try:
                    async with asyncio.TaskGroup() as parts:
                        parts.create_task(self.link.run(self.mirror))
                        parts.create_task(self.control.run(session))
                        parts.create_task(self._export.run(session))
                        parts.create_task(self._go_by_the_disk())
                finally:
                    await runner.cleanup()
                    await self._flush_spans(session)
        finally:
            self._spool.close()
            self._state.close()

    async def _serve_feed(self) -> web.AppRunner:
        app = web.Application()
        door = FeedDoor(self.hub, self._commands, self.options.feed_token)
        app.router.add_get("/feed", door.handle)
        app.router.add_get("/healthz", self._healthz)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self.options.feed_host, self.options.feed_port).start()
        except OSError as error:
            await runner.cleanup()
            where = f"{self.options.feed_host} port {self.options.feed_port}"
            raise ConfigurationError(f"--feed-port: can't listen on {where}: {error.strerror}.") from error
        self.feed_port = runner.addresses[0][1]
        self.started.set()
        logger.info("agent_started engine=%s feed_port=%d boot=%s", self.options.engine_name, self.feed_port, self.boot)
        return runner

    async def _go_by_the_disk(self) -> None:
        await asyncio.sleep(FIRST_POLICY_SECONDS)
        self.policy.settle()

    async def _flush_spans(self, session: aiohttp.ClientSession) -> None:
        try:
            async with asyncio.timeout(LAST_FLUSH_SECONDS):
                await self._export.flush(session)
        except TimeoutError:
            logger.warning("spans_not_flushed num_waiting=%d", len(self.span_queue))

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self.health()), content_type="application/json")

    def health(self) -> Health:
        return Health(
            engine_name=self.options.engine_name,
            engine_state=self.mirror.state,
            incarnation=self.mirror.incarnation,
            control_plane_connected=self.control.is_connected,
            policy_revision=self.policy.wanted.revision if self.policy.wanted else None,
            applied_revision=self.policy.applied.revision if self.policy.applied else None,
            num_peers=self.peers.num_listed,
            num_leases=len(self.leases),
            num_routers=self.hub.num_subscribers,
            num_pending_events=self.events.num_pending,
            num_dropped_events=self.events.num_dropped,
            num_failed_spool_writes=self._spool.num_failed_writes,
            num_waiting_spans=len(self.span_queue),
            num_exported_spans=self.span_queue.num_exported,
            num_dropped_spans=self.span_queue.num_dropped,
        )

    # ---------------------------------------------------------------- what the control plane's side asks

    def hello(self) -> AgentHello:
        """With the boot whose events are to be sent: not this process's own while an earlier one left some."""
        return AgentHello(
            protocol=PROTOCOL_VERSION,
            boot=self.events.boot,
            engine_name=self.options.engine_name,
            engine_url=self.options.engine_url,
            feed_url=self.options.feed_url or self._feed_url(),
            engine=self.mirror.info,
            agent_version=AGENT_VERSION,
        )

    def _feed_url(self) -> str:
        host = self.options.feed_host
        return f"ws://{f'[{host}]' if ':' in host else host}:{self.feed_port}/feed"

    def status(self) -> AgentStatus:
        return AgentStatus(
            state=self.mirror.state,
            incarnation=self.mirror.incarnation,
            load=self.mirror.load,
            engine=self.mirror.info,
            num_dropped_events=self.events.num_dropped,
            num_pending_events=self.events.num_pending,
        )

    def lease_snapshot(self) -> LeaseSnapshot | None:
        return self.mirror.lease_snapshot()

    def connection_opened(self) -> None:
        self.policy.connection_opened()

    async def accept_policy(self, policy: SetPolicy) -> None:
        await self.policy.accept(policy)

    async def accept_peers(self, peers: SetPeers) -> None:
        await self.peers.accept(peers)

    def no_policy_to_come(self) -> None:
        self.policy.settle()

    async def execute(self, command: Command, deadline_seconds: float) -> CommandDone:
        return await self._commands.execute(command.body, deadline_seconds)


async def run_agent(options: Options) -> None:
    """Until SIGTERM or SIGINT, or until a part fails, which raises."""
    running = asyncio.create_task(Agent(options).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    await asyncio.wait([running])
    if not running.cancelled():
        running.result()
    logger.info("agent_stopped engine=%s", options.engine_name)
