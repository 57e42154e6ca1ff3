"""The engines as this router sees them: the control plane's snapshot, corrected by the agents' feeds."""

import logging
import sys
from collections.abc import Iterator
from itertools import count

from yarl import URL

from connector.http import Target
from connector.protocol import EngineLoad, EngineState, FleetEngine, FleetSnapshot, PolicyValues, Role
from connector.router.health.breaker import Breaker

EMPTY_SNAPSHOT = FleetSnapshot(
    revision=0,
    values=PolicyValues(),
    model_patches={},
    tenant_patches={},
    session_patches={},
    engines=(),
    api_keys=(),
)

log = logging.getLogger(__name__)

_SERVING_STATES = frozenset(("ready", "silent"))
"""``silent``: its agent isn't heard, which says nothing about the engine. The router serves on without agents."""


def dialable(url: str) -> URL:
    """The URL as a connection takes it; raises ``ValueError`` for one without a host.

    RFC 6874 writes a scope id's percent sign as ``%25``, and the resolver wants the sign itself.
    """
    before, bracket, after = url.partition("]")
    parsed = URL(before.replace("%25", "%") + bracket + after if "[" in before else url, encoded=True)
    if not parsed.host:
        raise ValueError("it names no host")
    return parsed


_picks = count(1)


class Engine:
    """One engine and what is in flight to it. Lives as long as snapshots name it."""

    def __init__(self, facts: FleetEngine, max_legs: int = 0) -> None:
        self.facts = facts
        self._max_legs = max_legs or sys.maxsize
        self._is_reachable = False
        self.feed_state: EngineState | None = None
        self.feed_incarnation = ""
        """The incarnation that the feed told last; it outlives the feed until the control plane tells another."""
        self.load: EngineLoad | None = None
        self._num_foreign = 0
        self.served_models: frozenset[str] = frozenset((facts.model,))
        self.num_active = 0
        self.picked_at = 0
        """Later picks have higher numbers, over all engines."""

        self.is_late_with_notices = False
        self.health = Breaker(facts.name)
        self._targets: dict[str, Target] = {}
        self._base = URL()
        self.take_facts(facts)

    def take_facts(self, facts: FleetEngine) -> None:
        """What the control plane says now. An address that is none takes the engine out of service, no more."""
        if self.feed_state is None and self.facts.incarnation != facts.incarnation:
            self.feed_incarnation = ""
        if self.facts.model != facts.model:
            self.served_models = frozenset((facts.model,))
        self.facts = facts
        self._targets = {}
        try:
            self._base = dialable(facts.engine_url)
            self._is_reachable = True
        except ValueError as error:
            self._is_reachable = False
            log.warning("event=bad_engine_url engine=%s url=%s error=%s", facts.name, facts.engine_url, error)

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def role(self) -> Role:
        return self.facts.role

    @property
    def incarnation(self) -> str:
        return self.feed_incarnation or self.facts.incarnation

    @property
    def is_up(self) -> bool:
        """The engine answers as far as is known. The feed, where connected, is fresher than the control plane."""
        if self.facts.state == "pending" or not self._is_reachable:
            return False
        if self.feed_state is not None:
            return self.feed_state is EngineState.READY
        return self.facts.state in _SERVING_STATES

    @property
    def takes_turns(self) -> bool:
        return self.is_up and not self.facts.draining

    @property
    def is_avoided(self) -> bool:
        """It is taken only if there is no other."""
        return self.health.is_ejected

    @property
    def is_full(self) -> bool:
        """It has as many legs in flight as this router may send it."""
        return self.num_active >= self._max_legs

    def begin_leg(self) -> None:
        """A leg goes to this engine. ``end_leg`` must follow, whatever happens."""
        self.num_active += 1
        self.picked_at = next(_picks)
        self.health.start()

    def end_leg(self) -> None:
        self.num_active -= 1

    def take_load(self, load: EngineLoad | None) -> None:
        """What the engine says that it works on, beyond what this router sent it, is others'."""
        self.load = load
        self._num_foreign = max(0, load.num_running + load.num_waiting - self.num_active) if load else 0

    @property
    def num_foreign(self) -> int:
        """Requests of others at the engine, as of its last word; unknown while its feed isn't heard."""
        return self._num_foreign if self.feed_state is not None else 0

    def serves(self, model: str) -> bool:
        return model in self.served_models

    def url(self, path: str) -> Target:
        target = self._targets.get(path)
        if target is None:
            base = self._base
            origin = (base.host or "", base.port or 0, base.scheme == "https")
            target = self._targets[path] = Target(origin, base.raw_authority, base.raw_path.rstrip("/") + path)
        return target


class Fleet:
    """Current snapshot and engines by name. Changed only on the event loop. ``max_engine_legs``: 0 for no limit."""

    def __init__(self, max_engine_legs: int = 0) -> None:
        self._max_engine_legs = max_engine_legs
        self.snapshot = EMPTY_SNAPSHOT
        self._engines: dict[str, Engine] = {}

    def apply(self, snapshot: FleetSnapshot) -> None:
        """Takes a snapshot over; engines that stay keep their counters and what their feeds told."""
        engines = {}
        for facts in snapshot.engines:
            engine = self._engines.get(facts.name)
            if engine is None:
                engine = Engine(facts, self._max_engine_legs)
            else:
                engine.take_facts(facts)
            engines[facts.name] = engine
        self._engines = engines
        self.snapshot = snapshot

    def __iter__(self) -> Iterator[Engine]:
        return iter(self._engines.values())

    def get(self, name: str) -> Engine | None:
        return self._engines.get(name)

    @property
    def has_limit(self) -> bool:
        return self._max_engine_legs > 0

    def engines_accepting(self, role: Role, model: str) -> list[Engine]:
        engines = self.engines_serving(role, model)
        return [engine for engine in engines if not engine.is_full] if self._max_engine_legs else engines

    def engines_serving(self, role: Role, model: str) -> list[Engine]:
        """Full ones too."""
        return [e for e in self if e.role is role and e.takes_turns and e.serves(model)]

    def models_served(self) -> frozenset[str]:
        """Every model of a decode engine that takes turns."""
        served: set[str] = set()
        for engine in self:
            if engine.role is Role.DECODE and engine.takes_turns:
                served |= engine.served_models
        return frozenset(served)

    def models_known(self) -> frozenset[str]:
        """Every model of any approved engine, up or not: tells a wrong name from an outage."""
        known: set[str] = set()
        for engine in self:
            if engine.facts.state != "pending":
                known |= engine.served_models
        return frozenset(known)
