"""Metrics of the router. Every label has a bounded set of values: never an id, a path or a client's word."""

from collections.abc import Iterator

from connector.router.exposition import Family, Histogram
from connector.router.ownuse import OwnUse

LATENCY_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)

TOKEN_BUCKETS = (0, 64, 256, 1024, 4096, 16384, 65536, 262144)

MIN_HANDOFF_TOKENS = 64
"""Of shorter prompts decode computes a large part in any case: the last block isn't whole."""

PREFIX = "backhaul_router_"


class Metrics:
    """One set per router, so that tests and processes don't share counts."""

    def __init__(self) -> None:
        self._all: list[Family | Histogram] = []
        self._add_counters()
        self._add_gauges()
        self._add_engines()
        self._add_claims()
        self._add_histograms()
        self._own_use = OwnUse()

    def _add_counters(self) -> None:
        self.requests = self._counter("requests_total", "HTTP requests answered.", "path", "status")
        self.admission_refusals = self._counter(
            "admission_refusals_total", "Requests refused because too many are in flight.", "reason"
        )
        self.turns = self._counter("turns_total", "Turns ended.", "outcome")
        self.prefill_decisions = self._counter(
            "prefill_decisions_total", "How prefill legs got their KV, as the engine replied.", "decision"
        )
        self.withheld = self._counter("offers_withheld_total", "Prefill legs without a lease offer.", "reason")
        self.diverged = self._counter(
            "prompts_diverged_total", "Prompts that differ from the turn whose KV was offered, by what differs.", "role"
        )
        self.decode_alone = self._counter(
            "decode_alone_total", "Turns that decode computed without an offer of a prefill engine.", "reason"
        )
        handed = self._counter(
            "decode_prompt_tokens_total", "Prompts that prefill handed over, as decode found them.", "origin"
        )
        self._held, self._computed = handed.labels("held"), handed.labels("computed")
        self._unused = self._counter(
            "prefill_unused_total", "Turns of which decode computed most of the prompt though prefill had."
        ).only
        self.retries = self._counter("decode_retries_total", "Decode legs sent to a second engine.", "reason")
        self.releases = self._counter("releases_total", "Releases asked of agents.", "outcome")
        self.notice_waits = self._counter("notice_waits_total", "Waits for a lease notice.", "result")

    def _add_gauges(self) -> None:
        self.in_flight = self._gauge("requests_in_flight", "Requests to engines in flight, as limits count them.").only
        self.client_connections = self._gauge("client_connections", "Connections of clients.").only
        self.active_turns = self._gauge("active_turns", "Turns in progress.").only
        self.leases = self._gauge("leases", "Leases known from the feeds.").only
        self.known_turns = self._gauge("known_turns", "Turns in the placement index.").only
        self.control_connected = self._gauge("control_connected", "1 while the control plane is connected.").only
        self.file_refused = self._gauge("file_refused", "1 while a changed file can't be used.", "what")
        self.events_pending = self._gauge("events_pending", "Turn events not stored yet.").only
        self.events_dropped = self._gauge("events_dropped", "Turn events given up since start.").only
        self.spans_dropped = self._gauge("spans_dropped", "Spans given up since start.").only
        self.info = self._gauge("info", "1, with the version.", "version")

    def _add_histograms(self) -> None:
        self.diverged_at = Histogram(
            PREFIX + "diverged_at_token", "Token from which a prompt differs from the offered KV.", TOKEN_BUCKETS
        )
        self._all.append(self.diverged_at)
        self.place_seconds = self._latency("place_seconds", "Time to place a turn, notice waits included.")
        self.prefill_seconds = self._latency("prefill_seconds", "Duration of prefill legs.")
        self.ttft_seconds = self._latency("ttft_seconds", "From a request's arrival to its reply's first event.")
        self.turn_seconds = self._latency("turn_seconds", "Duration of turns.")
        self.loop_lag = self._latency("loop_lag_seconds", "How late the event loop runs, looked at twice a second.")

    def note_handoff(self, num_prompt: int, num_computed: int) -> None:
        """A turn that prefill computed: what decode computed of it again."""
        self._held.inc(num_prompt - num_computed)
        self._computed.inc(num_computed)
        if num_prompt >= MIN_HANDOFF_TOKENS and num_computed * 2 > num_prompt:
            self._unused.inc()

    def _add_engines(self) -> None:
        self.feed_gaps = self._counter("feed_gaps_total", "Lease feeds that skipped a number.").only
        self.ejections = self._counter("engine_ejections_total", "Engines put out of use.", "engine", "signal")
        self.pair_quarantines = self._counter("pair_quarantines_total", "Pairs of engines put out of use.").only
        self.pairs_out = self._gauge("pairs_quarantined", "Pairs of engines out of use or on trial.").only
        self.probes = self._counter("probes_total", "Looks at engines that nothing was heard of.", "result")
        self.engine_ejected = self._gauge("engine_ejected", "1 while an engine is out of use.", "engine", "role")
        self.engine_active = self._gauge("engine_active_legs", "Legs in flight per engine.", "engine", "role")
        self.feeds_connected = self._gauge("feeds_connected", "Lease feeds connected.").only

    def _add_claims(self) -> None:
        self.claims = self._counter(
            "claims_total", "Claims of running turns, to other routers (sent) and from them.", "result"
        )
        self.claim_batches_refused = self._counter(
            "claim_batches_refused_total", "Batches of claims that were not taken.", "reason"
        )
        self.claims_connected = self._gauge("claims_connected", "1 while claims are shared through Redis.").only
        self.remote_turns = self._gauge("remote_turns", "Turns that other routers say they run.").only

    def render(self) -> bytes:
        return ("\n".join(self._lines()) + "\n").encode()

    def _lines(self) -> Iterator[str]:
        for family in self._all:
            yield from family.render()
        yield from self._own_use.render()

    def _counter(self, name: str, text: str, *labels: str) -> Family:
        return self._add(Family("counter", PREFIX + name, text, labels))

    def _gauge(self, name: str, text: str, *labels: str) -> Family:
        return self._add(Family("gauge", PREFIX + name, text, labels))

    def _add(self, family: Family) -> Family:
        self._all.append(family)
        return family

    def _latency(self, name: str, text: str) -> Histogram:
        histogram = Histogram(PREFIX + name, text, LATENCY_BUCKETS)
        self._all.append(histogram)
        return histogram
