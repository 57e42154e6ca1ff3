"""Fleets, placements and turns for the choice, without sockets and with a clock of the test's own."""

import json
from collections import Counter
from typing import Any

from connector.protocol import EngineLoad, EngineState, FleetEngine, FleetSnapshot, PolicyValues, Role
from connector.router.choice.chooser import Chooser
from connector.router.choice.learning import Learner
from connector.router.choice.prefixes import PrefixMemory
from connector.router.choice.speeds import Speeds
from connector.router.fleet import Engine, Fleet
from connector.router.headers import EndToEnd
from connector.router.health.pairs import Pairs
from connector.router.index import HeldLease
from connector.router.placement import Placement
from connector.router.requests import Endpoint, TurnRequest, parse_request
from connector.router.tracing import start_trace
from connector.router.turnstate import Lap, Turn

MODEL = "tiny"


class Book:
    """Leases per engine, which is all that the choice asks of a lease book."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()

    def num_of(self, engine: str) -> int:
        return self.held[engine]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Yard:
    """Engines ``p0``... and ``d0``..., and everything that chooses among them."""

    def __init__(self, num_prefill: int, num_decode: int) -> None:
        self.clock = Clock()
        self.book = Book()
        self.fleet = Fleet()
        self.names = [f"p{i}" for i in range(num_prefill)] + [f"d{i}" for i in range(num_decode)]
        self.draining: set[str] = set()
        self.gone: set[str] = set()
        self.apply()
        self.speeds = Speeds(self.clock)
        self.prefixes = PrefixMemory(self.clock)
        self.pairs = Pairs(self.fleet, lambda: None, self.clock)
        self.chooser = Chooser(self.fleet, self.book, self.speeds, self.prefixes, self.pairs)  # type: ignore[arg-type]
        self.learner = Learner(self.fleet, self.speeds, self.chooser)

    def apply(self) -> None:
        self.fleet.apply(
            FleetSnapshot(
                revision=1,
                values=PolicyValues(),
                model_patches={},
                tenant_patches={},
                session_patches={},
                engines=tuple(self._facts(name) for name in self.names if name not in self.gone),
                api_keys=(),
            )
        )

    def _facts(self, name: str) -> FleetEngine:
        return FleetEngine(
            name=name,
            role=Role.PREFILL if name.startswith("p") else Role.DECODE,
            model=MODEL,
            state="ready",
            draining=name in self.draining,
            engine_url="http://127.0.0.1:1",
            feed_url="",
            incarnation="1",
        )

    def engine(self, name: str) -> Engine:
        engine = self.fleet.get(name)
        assert engine is not None
        return engine

    def load(self, name: str, **facts: int) -> None:
        """What the engine's feed tells."""
        zeros = dict.fromkeys(
            ("num_leases", "num_leased_blocks", "num_quarantined_blocks", "num_running", "num_waiting"), 0
        )
        given = zeros | {"num_blocks": 1000, "num_free_blocks": 1000, "num_dropped_events": 0} | facts
        engine = self.engine(name)
        engine.feed_state = EngineState.READY
        engine.take_load(EngineLoad(**given))  # type: ignore[arg-type]


def chat(*texts: str, **fields: Any) -> TurnRequest:
    messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
    body = json.dumps({"model": MODEL, "messages": messages, "stream": True, **fields}).encode()
    return parse_request(Endpoint.CHAT, body, {})


def lease_of(engine: str, num_tokens: int) -> HeldLease:
    return HeldLease("lease", engine, "1", "offer", float("inf"), num_tokens)


def placed(**facts: Any) -> Placement:
    given: dict[str, Any] = {
        "session_id": "s",
        "salt": "",
        "index": 0,
        "parent_turn_id": "",
        "parent_span": None,
        "lease": None,
        "withheld": None,
        "num_common": 0,
        "is_continued": False,
        "holder": "",
        "is_sequence": True,
        "chain": ("#0",),
        "records_reply": False,
        "policy": PolicyValues(),
        "patch": None,
    }
    return Placement(**(given | facts))


def turn_of(request: TurnRequest, placement: Placement, started: float) -> Turn:
    return Turn(
        turn_id="t",
        tenant="default",
        request=request,
        model=MODEL,
        trace=start_trace({}),
        placement=placement,
        salt="",
        base_headers=EndToEnd(b"", b""),
        started=started,
        started_ns=0,
        placing=Lap(),
    )
