"""Puts the parts of a router together; no part knows how the others are made."""

import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from connector.router.access import AccessLog
from connector.router.asides import Asides
from connector.router.choice.chooser import Chooser
from connector.router.choice.learning import Learner
from connector.router.choice.prefixes import PrefixMemory
from connector.router.choice.speeds import Speeds
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


@dataclass(frozen=True)
class Parts:
    """Everything that lives as long as the process."""

    fleet: Fleet
    index: TurnIndex
    book: LeaseBook
    watch: EngineWatch
    feeds: Feeds
    api_keys: ApiKeys
    upstream: Upstream
    models: ServedModels
    spool: EventSpool
    exporter: SpanExporter | None
    access: AccessLog
    metrics: Metrics
    turns: TurnRunner
    pairs: Pairs
    asides: Asides
    probes: HealthProbes


def assemble(settings: Settings, access: AccessLog | None = None) -> Parts:
    """The parts, nothing started yet. Creates the state directory."""
    prepare_state_dir(settings.state_dir)
    metrics, fleet, api_keys = Metrics(), Fleet(), ApiKeys()
    spool = EventSpool(settings.state_dir)
    access = access or AccessLog(sys.stdout.buffer)
    spans = SpanQueue() if settings.otlp_endpoint else None
    exporter = _exporter(settings, spans) if spans is not None else None
    index = TurnIndex(settings.index_turns, settings.index_bytes, settings.tenant_share)
    sessions = Sessions()
    feeds = Feeds(settings.feed_token, metrics, fleet)
    book = LeaseBook(index, feeds.release)
    watch = EngineWatch(fleet, book)
    upstream = Upstream(settings.engine_timeout_seconds)
    models = ServedModels(fleet, upstream, settings.engine_key)
    keyring = SessionKeyring(settings.fleet_key)
    earlier = EarlierResponses(fleet, keyring)
    placer = Placer(fleet, index, sessions, book, keyring, metrics)
    signer = LegSigner(settings.fleet_key)
    pairs, chooser, learner = _choice(fleet, book, metrics)
    turns = TurnRunner(
        models=models,
        earlier=earlier,
        placer=placer,
        chooser=chooser,
        learner=learner,
        pairs=pairs,
        book=book,
        prefill=PrefillLeg(upstream, signer, settings.engine_key),
        decode=DecodeLeg(upstream, signer, settings.engine_key, placer, metrics, earlier),
        recorder=Recorder(metrics, SpanWriter(spans.put if spans is not None else None), access, spool.append),
        metrics=metrics,
        release=feeds.release,
        max_body_bytes=settings.max_body_bytes,
    )
    return Parts(
        fleet=fleet,
        index=index,
        book=book,
        watch=watch,
        feeds=feeds,
        api_keys=api_keys,
        upstream=upstream,
        models=models,
        spool=spool,
        exporter=exporter,
        access=access,
        metrics=metrics,
        turns=turns,
        pairs=pairs,
        asides=_asides(settings, fleet, models, upstream, metrics),
        probes=_probes(settings, fleet, upstream, metrics),
    )


def _probes(settings: Settings, fleet: Fleet, upstream: Upstream, metrics: Metrics) -> HealthProbes:
    return HealthProbes(fleet, upstream, settings.engine_key, metrics, settings.probe_seconds, settings.stall_seconds)


def _choice(fleet: Fleet, book: LeaseBook, metrics: Metrics) -> tuple[Pairs, Chooser, Learner]:
    pairs, speeds = Pairs(fleet), Speeds()
    pairs.on_quarantine = metrics.pair_quarantines.inc
    chooser = Chooser(fleet, book, speeds, PrefixMemory(), pairs)
    return pairs, chooser, Learner(fleet, speeds, chooser)


def _asides(settings: Settings, fleet: Fleet, models: ServedModels, upstream: Upstream, metrics: Metrics) -> Asides:
    return Asides(
        fleet=fleet,
        models=models,
        upstream=upstream,
        metrics=metrics,
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
