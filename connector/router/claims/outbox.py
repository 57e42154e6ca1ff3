"""What this router has to tell of its own turns; the request's side of it only appends to a list."""

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import islice

from connector.identity import uuid7_text
from connector.router.claims.messages import MAX_CLAIMS, Batch, Claim, TurnDecoding, TurnEnded, TurnStarted, size_of
from connector.router.known import NewTurn

MAX_QUEUED = 20_000
"""Claims not sent yet. With more, all are dropped and what still runs is told anew."""

MAX_RESTATED = 5_000
"""Running turns that are told anew, the latest first."""

MAX_BATCH_BYTES = 16 * 1024
"""A batch is cut after the claim that reaches it."""


@dataclass(slots=True)
class Own:
    """A turn of this router that runs."""

    turn: NewTurn
    engine: str = ""


class ClaimOutbox:
    """Costs one comparison a call while nothing is shared, and a few dictionary steps while it is."""

    def __init__(self, is_on: bool = False) -> None:
        self._is_on = is_on
        self._is_open = False
        self._is_reset = True
        self._boot = uuid7_text()
        self._sequence = 0
        self._queue: deque[NewTurn | TurnDecoding | TurnEnded] = deque()
        self._running: dict[str, Own] = {}
        self._has_claims = asyncio.Event()
        self.num_lost = 0

    @property
    def boot(self) -> str:
        return self._boot

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    # ------------------------------------------------ what turns do

    def start(self, turn: NewTurn) -> None:
        if self._is_on:
            self._running[turn.turn_id] = Own(turn)
            self._put(turn)

    def decode(self, turn_id: str, engine: str) -> None:
        """Of a turn of this router; another's is none of its business."""
        own = self._running.get(turn_id)
        if own is not None and own.engine != engine:
            own.engine = engine
            self._put(TurnDecoding(turn_id, engine))

    def end(self, turn_id: str, is_served: bool, reply: bytes, num_prompt_tokens: int) -> None:
        if self._running.pop(turn_id, None) is not None:
            self._put(TurnEnded(turn_id, is_served, reply, min(max(num_prompt_tokens, 0), 0xFFFFFFFF)))

    # ------------------------------------------------ what the publisher does

    def open(self) -> None:
        """Batches can be sent from now on; the first ones tell all that runs."""
        self._is_open = True
        self._restate()

    def shut(self) -> None:
        """They can't: nothing is kept for later but what still runs."""
        self._is_open = False
        self._queue.clear()

    async def wait(self, seconds: float) -> None:
        """Until there is a claim to send, or for ``seconds``."""
        if self._queue:
            return
        self._has_claims.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._has_claims.wait()
        except TimeoutError:
            return

    def take(self, is_last: bool = False) -> Batch:
        """The next batch, empty if there is nothing to tell."""
        claims: list[Claim] = []
        num_bytes = 0
        while self._queue and len(claims) < MAX_CLAIMS and num_bytes < MAX_BATCH_BYTES:
            claim = self._queue.popleft()
            claims.append(TurnStarted.of(claim) if isinstance(claim, NewTurn) else claim)
            num_bytes += size_of(claims[-1])
        self._sequence += 1
        is_reset, self._is_reset = self._is_reset, False
        return Batch(self._boot, self._sequence, is_reset, is_last, tuple(claims))

    def _put(self, claim: NewTurn | TurnDecoding | TurnEnded) -> None:
        if not self._is_open:
            return
        if len(self._queue) >= MAX_QUEUED:
            self.num_lost += len(self._queue)
            self._restate()
            return
        self._queue.append(claim)
        self._has_claims.set()

    def _restate(self) -> None:
        self._queue.clear()
        self._is_reset = True
        for own in islice(reversed(self._running.values()), MAX_RESTATED):
            self._queue.append(own.turn)
            if own.engine:
                self._queue.append(TurnDecoding(own.turn.turn_id, own.engine))
        self._has_claims.set()
