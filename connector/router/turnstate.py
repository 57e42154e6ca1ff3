"""What is known of a turn while it runs; read by the recorder when it has ended."""

import time
from dataclasses import dataclass, field
from enum import StrEnum

from connector.protocol import Decision, LegReply
from connector.router.choice.plan import Plan
from connector.router.difference import Difference
from connector.router.fleet import Engine
from connector.router.headers import EndToEnd
from connector.router.placement import Placement
from connector.router.requests import TurnRequest
from connector.router.tracing import TurnTrace


class Outcome(StrEnum):
    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"


class Alone(StrEnum):
    """Why decode computed a turn without an offer of a prefill engine."""

    ONE_LEG = "one_leg"
    NO_PREFILL_ENGINE = "no_prefill_engine"
    PREFILL_FAILED = "prefill_failed"
    NO_OFFER = "no_offer"
    DECODE_LOCAL = "decode_local"


DECODE_REASONS = {
    Alone.ONE_LEG: Decision.UNSUPPORTED,
    Alone.NO_PREFILL_ENGINE: Decision.NO_PLACEMENT,
    Alone.PREFILL_FAILED: Decision.SOURCE_LOST,
    Alone.NO_OFFER: Decision.NO_PLACEMENT,
    Alone.DECODE_LOCAL: Decision.DECODE_LOCAL,
}


@dataclass(slots=True)
class Lap:
    """Monotonic seconds; 0 means not reached."""

    start: float = 0.0
    end: float = 0.0

    def begin(self) -> None:
        self.start = time.monotonic()

    def finish(self) -> None:
        self.end = time.monotonic()

    @property
    def seconds(self) -> float:
        return max(0.0, self.end - self.start)


@dataclass(slots=True)
class Turn:
    """Mutable, owned by one request's task. ``started`` is monotonic seconds, ``started_ns`` Unix nanoseconds.

    ``base_headers`` are the client's end-to-end headers, rendered; ``prefill_status`` is 0 until P answered; ``keeper``
    is the only engine that can render the prompt, which goes on from a response that it keeps; ``num_decode_cached`` is
    what D said that it had of the prompt when it began.
    """

    turn_id: str
    tenant: str
    request: TurnRequest
    model: str
    trace: TurnTrace
    placement: Placement
    salt: str
    base_headers: EndToEnd
    started: float
    started_ns: int
    placing: Lap
    keeper: Engine | None = None
    plan: Plan | None = None
    prefill: Lap = field(default_factory=Lap)
    decode: Lap = field(default_factory=Lap)
    prefill_engine: Engine | None = None
    decode_engine: Engine | None = None
    reply: LegReply | None = None
    alone: Alone | None = None
    prefill_status: int = 0
    prefill_error: str = ""
    decode_error: str = ""
    http_status: int = 0
    outcome: Outcome = Outcome.ERROR
    first_event_at: float = 0.0
    num_bytes: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_decode_cached: int | None = None
    reply_digest: bytes = b""
    decode_envelope: str = ""
    _is_reserved: bool = False

    def reserve(self, engine: Engine) -> None:
        """Counts the turn at the decode engine from its choice on, so that choices made meanwhile see it."""
        self.unreserve()
        engine.begin_leg()
        self.decode_engine = engine
        self._is_reserved = True

    def unreserve(self) -> None:
        if self._is_reserved and self.decode_engine is not None:
            self.decode_engine.end_leg()
        self._is_reserved = False

    @property
    def difference(self) -> Difference | None:
        """Why less than the whole offer could be reused, as far as messages tell it."""
        comparison = self.placement.comparison
        return comparison.explain(self.reply.diverged_at_token if self.reply else None) if comparison else None

    @property
    def num_decode_computed(self) -> int | None:
        """Tokens of the prompt that D computed though P had; absent without an offer of P's, and if D didn't tell."""
        if self.alone is not None or self.num_decode_cached is None:
            return None
        return max(0, self.num_prompt_tokens - self.num_decode_cached)

    @property
    def ttft_seconds(self) -> float:
        return self.first_event_at - self.started if self.first_event_at else 0.0
