"""Puts the parts of a router together; no part knows how the others are made."""

import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from connector.router.access import AccessLog
from connector.router.admission import Admission, EngineRoom
from connector.router.asides import Asides
from connector.router.choice.chooser import Chooser
from connector.router.choice.learning import Learner
from connector.router.choice.prefixes import PrefixMemory
from connector.router.choice.speeds import Speeds
from connector.router.claims.outbox import ClaimOutbox
from connector.router.claims.remote import RemoteTurns
from connector.router.decode import DecodeLeg
from connector.router.earlier import EarlierResponses
from connector.router.environment import Settings
from connector.router.export import SpanExporter, SpanQueue
from connector.router.feeds import Feeds
from connector.router.fleet import Fleet
from connector.router.health.pairs import Pairs
from connector.router.health.probes import HealthProbes
from connector.router.index import TurnIndex
from connector.router.keyring import SessionKeyring
from connector.router.keys import ApiKeys
from connector.router.leases import LeaseBook
from connector.router.legs import LegSigner
from connector.router.live import Refreshed
from connector.router.metrics import Metrics
from connector.router.models import ServedModels
from connector.router.placement import Placer
from connector.router.prefill import PrefillLeg
from connector.router.recording import Recorder
from connector.router.sessions import Sessions
from connector.router.spool import EventSpool
from connector.router.store import prepare_state_dir
from connector.router.tracing import SpanWriter, resource_of
from connector.router.turn import TurnRunner
from connector.router.upstream import Upstream
from connector.router.watching import EngineWatch

if TYPE_CHECKING:
    from connector.router.claims.sharing import ClaimSharing


@dataclass(frozen=True)
class Base:
    """What turns and all the rest build on."""

    fleet: Fleet
    admission: Admission
    pairs: Pairs
    index: TurnIndex
    book: LeaseBook
    feeds: Feeds
    upstream: Upstream
    models: ServedModels
    spool: EventSpool
    access: AccessLog
    metrics: Metrics
    live: tuple[Refreshed, ...]


@dataclass(frozen=True)
class Parts(Base):
    """Everything that lives as long as the process."""

    watch: EngineWatch
    api_keys: ApiKeys
    exporter: SpanExporter | None
    turns: TurnRunner
    asides: Asides
    probes: HealthProbes
    claims: "ClaimSharing | None"


def assemble(settings: Settings, access: AccessLog | None = None) -> Parts:
    """The parts, nothing started yet. Creates the state directory."""
    prepare_state_dir(settings.state_dir)
    router = "" if settings.process_number is None else settings.router_name
    base = _base(settings, access or AccessLog(sys.stdout.buffer, router))
    spans = SpanQueue() if settings.otlp_endpoint else None
    keyring, sessions, outbox = SessionKeyring(settings.fleet_key), Sessions(), ClaimOutbox(bool(settings.redis_url))
    placer = Placer(base.fleet, base.index, sessions, base.book, keyring, base.metrics, outbox)
    return Parts(
        **vars(base),
        watch=EngineWatch(base.fleet, base.book),
        api_keys=ApiKeys(),
        exporter=_exporter(settings, spans) if spans is not None else None,
        turns=_turns(settings, base, placer, keyring, SpanWriter(spans.put if spans is not None else None)),
        asides=_asides(settings, base),
        probes=_probes(settings, base),
        claims=_claims(settings, base, sessions, placer, outbox),
    )


def _base(settings: Settings, access: AccessLog) -> Base:
    metrics, fleet = Metrics(), Fleet(settings.max_engine_legs)
    metrics.info.labels(router_version()).set(1)
    index = TurnIndex(settings.index_turns, settings.index_bytes, settings.tenant_share)
    feeds = Feeds(settings.feed_token, metrics, fleet)
    tls = settings.engine_tls
    upstream = Upstream(settings.engine_timeout_seconds, (lambda: tls.current) if tls is not None else None)
    return Base(
        fleet=fleet,
        admission=Admission(settings.max_turns, settings.max_tenant_turns, metrics),
        pairs=Pairs(fleet, metrics.pair_quarantines.inc),
        index=index,
        book=LeaseBook(index, feeds.release),
        feeds=feeds,
        upstream=upstream,
        models=ServedModels(fleet, upstream, settings.engine_key),
        spool=EventSpool(settings.state_dir),
        access=access,
        metrics=metrics,
        live=settings.live,
    )


def _turns(settings: Settings, base: Base, placer: Placer, keyring: SessionKeyring, spans: SpanWriter) -> TurnRunner:
    fleet, metrics, key = base.fleet, base.metrics, settings.engine_key
    signer, earlier = LegSigner(settings.fleet_key), EarlierResponses(fleet, keyring)
    speeds = Speeds()
    chooser = Chooser(fleet, base.book, speeds, PrefixMemory(), base.pairs)
    return TurnRunner(
        fleet=fleet,
        models=base.models,
        earlier=earlier,
        room=EngineRoom(fleet, base.admission),
        placer=placer,
        chooser=chooser,
        learner=Learner(fleet, speeds, chooser),
        pairs=base.pairs,
        book=base.book,
        prefill=PrefillLeg(base.upstream, signer, key),
        decode=DecodeLeg(base.upstream, signer, key, placer, metrics, earlier),
        recorder=Recorder(metrics, spans, base.access, base.spool.append),
        metrics=metrics,
        release=base.feeds.release,
        max_body_bytes=settings.max_body_bytes,
    )


def _claims(
    settings: Settings, base: Base, sessions: Sessions, placer: Placer, outbox: ClaimOutbox
) -> "ClaimSharing | None":
    """A router that shares nothing loads no Redis client."""
    if not settings.redis_url:
        return None
    from connector.router.claims.sharing import ClaimSharing

    remote = RemoteTurns(base.index, sessions, placer, base.metrics, settings.engine_timeout_seconds)
    return ClaimSharing(settings.redis_url, settings.fleet_key, outbox, remote, base.metrics)


def _probes(settings: Settings, base: Base) -> HealthProbes:
    key, seconds, stall_seconds = settings.engine_key, settings.probe_seconds, settings.stall_seconds
    return HealthProbes(base.fleet, base.upstream, key, base.metrics, seconds, stall_seconds)


def _asides(settings: Settings, base: Base) -> Asides:
    return Asides(
        fleet=base.fleet,
        models=base.models,
        upstream=base.upstream,
        metrics=base.metrics,
        engine_key=settings.engine_key,
        max_body_bytes=settings.max_body_bytes,
    )


def _exporter(settings: Settings, spans: SpanQueue) -> SpanExporter:
    return SpanExporter(spans, resource_of(settings.router_name), settings.otlp_endpoint, settings.router_token)


def router_version() -> str:
    try:
        return version("backhaul")
    except PackageNotFoundError:
        return "unpackaged"
