"""The router process: starts and stops the parts, answers HTTP, drains on request."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from connector.http import HttpServer, Limits, steady_context
from connector.protocol import FleetSnapshot, PolicyAck, RouterStatus
from connector.router.assembly import Parts, router_version
from connector.router.control import ControlClient
from connector.router.endpoints import Doors
from connector.router.environment import Settings
from connector.router.live import follow
from connector.router.ownport import OwnDoors
from connector.router.ownuse import watch_loop
from connector.router.store import load_snapshot, save_snapshot

FAREWELL_SECONDS = 2.0
"""How long a stopping router waits for the control plane to take the last events and the agents the last releases."""

POLL_SECONDS = 0.05

FIRST_FEEDS_SECONDS = 2.0
"""A restarted router waits this long for the leases of the engines that it knows, so that its first turn reuses."""

log = logging.getLogger(__name__)


class Router:
    """``start``, then ``stop``; ``failed`` is set when a background part died, which no part should."""

    def __init__(self, settings: Settings, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._doors = Doors(parts)
        self._doors.is_one_of_several = settings.process_number is not None
        self._tasks: list[asyncio.Task[None]] = []
        self._server = HttpServer(self._doors, Limits(max_body_bytes=settings.max_body_bytes))
        self._doors.num_connections = lambda: len(self._server.connections)
        self._own = HttpServer(OwnDoors(self._doors), Limits(max_body_bytes=0))
        self.failed = asyncio.Event()
        self._reload_asked = asyncio.Event()
        self._control = ControlClient(
            settings.controlplane_url,
            settings.router_token,
            settings.router_name,
            router_version(),
            parts.spool,
            self._apply,
            self._status,
        )
        self._doors.is_control_connected = lambda: self._control.is_connected

    @property
    def port(self) -> int:
        """The port that is listened on; known once started."""
        return self._server.port

    async def start(self) -> None:
        """Listens when this returns. Without a control plane the last snapshot on disk is used."""
        saved = load_snapshot(self._settings.state_dir)
        if saved is not None:
            log.info("event=saved_snapshot_used revision=%s engines=%s", saved.revision, len(saved.engines))
            self._take_over(saved)
        self._parts.feeds.open(self._parts.watch)
        await self._parts.feeds.wait_until_tried(FIRST_FEEDS_SECONDS)
        self._supervise("control", self._control.run())
        self._supervise("models", self._parts.models.run())
        self._supervise("upstream", self._parts.upstream.run())
        self._supervise("loop", watch_loop(self._parts.metrics.loop_lag))
        self._supervise("live", follow(self._settings.live, self._reload_asked))
        if self._parts.exporter is not None:
            self._supervise("exporter", self._parts.exporter.run())
        if self._parts.claims is not None:
            self._supervise("claims", self._parts.claims.run())
        await self._listen()

    def reload(self) -> None:
        """Reads what is live anew at once instead of within a second."""
        self._reload_asked.set()

    async def stop(self) -> None:
        """Takes no new request, lets those in flight end within the drain time, then leaves nothing behind."""
        self._doors.is_draining = True
        self._server.stop_listening()
        await self._until(lambda: self._parts.admission.num_active == 0, self._settings.drain_seconds)
        await self._server.close()
        await self._until(self._is_all_told, FAREWELL_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._parts.claims is not None:
            await self._parts.claims.say_goodbye()
        await self._parts.probes.close()
        await self._parts.feeds.close()
        await self._parts.models.close()
        self._parts.upstream.close()
        self._parts.spool.close()
        self._parts.access.flush()
        await self._own.close()
        if self._parts.exporter is not None:
            await self._parts.exporter.flush()

    async def _listen(self) -> None:
        tls = self._settings.tls
        context = steady_context(lambda: tls.current) if tls is not None else None
        reuse_port = True if self._settings.process_number is not None else None
        if self._settings.metrics_port is not None:
            await self._listen_for_metrics(self._settings.metrics_host, self._settings.metrics_port)
        await self._server.start(self._settings.host, self._settings.port, tls=context, reuse_port=reuse_port)
        log.info("event=listening host=%s port=%s", self._settings.host, self.port)

    async def _listen_for_metrics(self, host: str, port: int) -> None:
        try:
            await self._own.start(host, port)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}; for metrics, at {host}:{port}") from error
        log.info("event=metrics_listening host=%s port=%s", host, self._own.port)

    def _is_all_told(self) -> bool:
        control_done = not self._control.is_connected or self._parts.spool.num_pending == 0
        return control_done and self._parts.feeds.is_idle

    async def _until(self, is_done: Callable[[], bool], seconds: float) -> None:
        for _ in range(int(seconds / POLL_SECONDS)):
            if is_done():
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _apply(self, snapshot: FleetSnapshot) -> PolicyAck:
        """Puts a snapshot into effect, keeps it for the next start, and reads back what is obeyed now."""
        self._take_over(snapshot)
        await asyncio.to_thread(save_snapshot, self._settings.state_dir, snapshot)
        current = self._parts.fleet.snapshot
        return PolicyAck(enforcer=self._settings.router_name, revision=current.revision, values=current.values)

    def _take_over(self, snapshot: FleetSnapshot) -> None:
        parts = self._parts
        before = frozenset(engine.name for engine in parts.fleet)
        parts.fleet.apply(snapshot)
        parts.api_keys.replace(snapshot.api_keys)
        parts.watch.follow_fleet(before)
        parts.feeds.follow_fleet()
        parts.probes.follow_fleet()
        parts.models.hurry()
        self._doors.has_fleet = True

    def _status(self) -> RouterStatus:
        parts = self._parts
        return RouterStatus(
            num_active_turns=parts.turns.num_active,
            num_leases=len(parts.book),
            num_pending_events=parts.spool.num_pending,
            num_dropped_events=parts.spool.num_dropped,
        )

    def _supervise(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._note_end)
        self._tasks.append(task)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        log.critical("event=part_died part=%s", task.get_name(), exc_info=task.exception())
        self.failed.set()
