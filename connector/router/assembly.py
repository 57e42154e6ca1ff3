"""Puts the parts of a router together; no part knows how the others are made."""

import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from connector.router.access import AccessLog
from connector.router.chain import ChainHasher
from connector.router.decode import DecodeLeg
from connector.router.environment import Settings
from connector.router.feeds import Feeds
from connector.router.fleet import Fleet
from connector.router.index import TurnIndex
from connector.router.keys import ApiKeys
from connector.router.leases import LeaseBook
from connector.router.legs import LegSigner
from connector.router.metrics import Metrics
from connector.router.models import ServedModels
from connector.router.placement import Placer
from connector.router.prefill import PrefillLeg
from connector.router.recording import Recorder
from connector.router.session import SessionKeys
from connector.router.sessions import Sessions
from connector.router.spool import EventSpool
from connector.router.store import prepare_state_dir
from connector.router.tracing import SpanWriter, open_span_writer
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
    spans: SpanWriter
    access: AccessLog
    metrics: Metrics
    turns: TurnRunner


def assemble(settings: Settings, access: AccessLog | None = None, spans: SpanWriter | None = None) -> Parts:
    """The parts, nothing started yet. Creates the state directory."""
    prepare_state_dir(settings.state_dir)
    metrics, fleet, api_keys = Metrics(), Fleet(), ApiKeys()
    spool = EventSpool(settings.state_dir)
    access = access or AccessLog(sys.stdout.buffer)
    spans = spans or open_span_writer(settings.otlp_endpoint, settings.router_token, settings.router_name)
    index, sessions = TurnIndex(settings.index_turns), Sessions()
    feeds = Feeds(settings.feed_token, metrics, fleet)
    book = LeaseBook(index, sessions, feeds.release)
    watch = EngineWatch(fleet, book)
    upstream = Upstream(settings.engine_timeout_seconds)
    models = ServedModels(fleet, upstream, settings.engine_key)
    session_key = settings.fleet_key.session_key()
    session_keys = SessionKeys(session_key)
    placer = Placer(fleet, index, sessions, book, session_keys, ChainHasher(session_key), metrics)
    signer = LegSigner(settings.fleet_key)
    turns = TurnRunner(
        fleet=fleet,
        api_keys=api_keys,
        session_keys=session_keys,
        models=models,
        placer=placer,
        book=book,
        prefill=PrefillLeg(upstream, signer, settings.engine_key),
        decode=DecodeLeg(upstream, signer, settings.engine_key, placer, metrics),
        recorder=Recorder(metrics, spans, access, spool.append),
        metrics=metrics,
        release=feeds.release,
    )
    return Parts(fleet, index, book, watch, feeds, api_keys, upstream, models, spool, spans, access, metrics, turns)


def router_version() -> str:
    try:
        return version("backhaul")
    except PackageNotFoundError:
        return "unpackaged"
