"""What this engine tells its agent: facts, load, events. Nothing here may block a step."""

import logging
from typing import Any

import vllm

from connector.engine import __version__, guards
from connector.engine.link import EngineLink, LinkCallbacks
from connector.engine.options import EngineOptions
from connector.protocol import (
    PROTOCOL_VERSION,
    CommandDone,
    EngineEvent,
    EngineHello,
    EngineInfo,
    EngineLoad,
    EngineToAgent,
    ExtendLease,
    LeaseEnded,
    LegDecided,
    ReleaseLease,
    SetPolicy,
    TransferRecorded,
)

logger = logging.getLogger("vllm.backhaul.reporting")


class EngineReporter:
    """Owns the link. Gauges are plain integers written by the scheduler thread and read by the link thread."""

    def __init__(self, scheduler: Any, options: EngineOptions) -> None:
        self._scheduler = scheduler
        self._options = options
        self._block_pool: Any = None
        self._active: set[str] = set()
        self._num_running = 0
        self._link: EngineLink | None = None

    def bind(self, block_pool: Any) -> None:
        """The link opens once the engine can answer for its blocks."""
        self._block_pool = block_pool
        scheduler = self._scheduler
        callbacks = LinkCallbacks(
            hello=self._hello,
            held_leases=scheduler.control.held_offers,
            set_policy=self._set_policy,
            load=self._load,
            is_known=lambda key: scheduler.control.table.find(key) is not None,
            set_peers=scheduler.peers.set,
            tick=scheduler.fleet_key.refresh,
            wake=scheduler.idle_wait.interrupt,
            reset_cache=scheduler.cache_reset.ask,
        )
        self._link = EngineLink(self._options.link_path, callbacks)
        self._wait_for_policy(self._link)

    def _wait_for_policy(self, link: EngineLink) -> None:
        """vLLM starts no HTTP server before this returns, so the first request finds the current revision."""
        seconds = self._options.policy_wait_seconds
        if seconds > 0 and not link.wait_for_policy(seconds):
            logger.warning(
                "No agent set a policy within %g s (backhaul_policy_wait_seconds); the start-up constants hold until "
                "one does.",
                seconds,
            )

    def close(self) -> None:
        if self._link is not None:
            self._link.close()

    def send(self, message: EngineToAgent) -> None:
        if self._link is not None:
            self._link.send(message)

    def event(self, event: LeaseEnded | TransferRecorded | LegDecided) -> None:
        self.send(EngineEvent(age_ms=0.0, event=event))

    def done(self, command: ReleaseLease | ExtendLease, outcome: str, detail: str = "") -> None:
        self.send(CommandDone(command_id=command.command_id, outcome=outcome, detail=detail))

    def commands(self) -> list[ReleaseLease | ExtendLease]:
        return list(self._link.take_commands()) if self._link is not None else []

    def count_arrival(self, request_id: str) -> None:
        self._active.add(request_id)

    def count_departure(self, request_id: str) -> None:
        self._active.discard(request_id)

    @property
    def num_active(self) -> int:
        """Requests that have arrived and not ended."""
        return len(self._active)

    def count_step(self, scheduler_output: Any) -> None:
        self._num_running = len(scheduler_output.num_scheduled_tokens)

    def _set_policy(self, message: SetPolicy) -> Any:
        return self._scheduler.live_policy.set(message.revision, message.values)

    def _hello(self) -> EngineHello:
        scheduler = self._scheduler
        config = scheduler.vllm_config
        served = config.model_config.served_model_name
        info = EngineInfo(
            name=self._options.engine_name,
            incarnation=str(scheduler.engine_id),
            role=scheduler.role,
            model=served[0] if isinstance(served, list) else str(served),
            block_size=int(scheduler.block_size),
            num_blocks=int(self._block_pool.num_gpu_blocks),
            bytes_per_block=int(scheduler.factory.bytes_per_block),
            kv_dtype=str(config.cache_config.cache_dtype),
            vllm_version=str(vllm.__version__),
            connector_version=__version__,
            unsupported_fields=scheduler.live_policy.unsupported_fields,
        )
        return EngineHello(
            protocol=PROTOCOL_VERSION,
            engine=info,
            policy=scheduler.live_policy.applied(),
            num_leases=scheduler.control.table.num_live_sessions,
        )

    def _load(self, num_dropped_events: int) -> EngineLoad:
        table = self._scheduler.control.table
        return EngineLoad(
            num_free_blocks=int(self._block_pool.get_num_free_blocks()),
            num_blocks=int(self._block_pool.num_gpu_blocks),
            num_leases=table.num_session_leases,
            num_leased_blocks=table.num_blocks,
            num_quarantined_blocks=self._scheduler.quarantine.num_blocks,
            num_running=self._num_running,
            num_waiting=max(0, len(self._active) - self._num_running),
            num_dropped_events=num_dropped_events,
            refused_offers=dict(self._scheduler.matcher.num_refused),
            num_unread_blocks=table.num_unread_blocks,
            num_contained=guards.total(),
            unread_block_seconds=round(self._scheduler.control.unread_block_seconds, 3),
        )
