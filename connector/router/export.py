"""Ended spans on their way to an OTLP/HTTP endpoint: bounded, kept while it is away, of no concern to any request.

The SDK's batch processor works in a thread that competes with the event loop and gives a batch up within seconds.
Here spans are encoded one by one as their turns end, and queue and POST belong to the loop.
"""

import asyncio
import logging
from collections import deque

import aiohttp
from opentelemetry.sdk.resources import Resource

from connector.router.live import Source
from connector.router.otlp import encode_request
from connector.router.reconnect import delays
from connector.router.tracing import SCOPE_NAME

MAX_QUEUED = 20_000
MAX_BATCH = 512
GATHER_SECONDS = 0.5
REQUEST_SECONDS = 10.0
LONGEST_RETRY_SECONDS = 15.0
FLUSH_SECONDS = 3.0

HOPELESS_STATUSES = frozenset((400, 413, 415, 422))
"""The receiver read the batch and will never take it; anything else may heal."""

log = logging.getLogger(__name__)


class SpanQueue:
    """Holds encoded spans, the newest 20,000. Used on the event loop only."""

    def __init__(self) -> None:
        self.filled = asyncio.Event()
        self.num_dropped = 0
        self._spans: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._spans)

    def put(self, span: bytes) -> None:
        self._spans.append(span)
        if len(self._spans) > MAX_QUEUED:
            self._spans.popleft()
            self.num_dropped += 1
        self.filled.set()

    def take(self) -> list[bytes]:
        """The oldest spans, which now belong to the caller."""
        batch = [self._spans.popleft() for _ in range(min(MAX_BATCH, len(self._spans)))]
        if not self._spans:
            self.filled.clear()
        return batch


class SpanExporter:
    """Posts what the queue holds, one batch at a time. Run ``run`` as a task; ``flush`` once it is cancelled."""

    def __init__(self, queue: SpanQueue, resource: Resource, endpoint: str, token: Source[str]) -> None:
        self._queue = queue
        self._resource = resource
        self._endpoint = endpoint
        self._token = token
        self._unsent: list[bytes] = []

    @property
    def num_dropped(self) -> int:
        return self._queue.num_dropped

    async def run(self) -> None:
        """Exports for ever, slower while the receiver is away."""
        waits = delays(LONGEST_RETRY_SECONDS)
        async with aiohttp.ClientSession() as session:
            while True:
                if not self._unsent:
                    await self._queue.filled.wait()
                if len(self._queue) < MAX_BATCH:
                    await asyncio.sleep(GATHER_SECONDS)
                self._unsent = self._unsent or self._queue.take()
                if await self._post(session, self._unsent):
                    self._unsent, waits = [], delays(LONGEST_RETRY_SECONDS)
                else:
                    await asyncio.sleep(next(waits))

    async def flush(self) -> None:
        """Tries what is left once, for ``FLUSH_SECONDS`` at most."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS), aiohttp.ClientSession() as session:
                batch = self._unsent or self._queue.take()
                while batch and await self._post(session, batch):
                    batch = self._queue.take()
        except TimeoutError:
            log.warning("event=spans_not_flushed count=%s", len(self._queue))

    async def _post(self, session: aiohttp.ClientSession, spans: list[bytes]) -> bool:
        """False when the batch should be sent again."""
        body = encode_request(self._resource, SCOPE_NAME, spans)
        headers = {"Authorization": f"Bearer {self._token.current}", "Content-Type": "application/x-protobuf"}
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        try:
            async with session.post(self._endpoint, data=body, headers=headers, timeout=timeout) as response:
                if response.status < 300:
                    return True
                log.warning("event=spans_refused status=%s count=%s", response.status, len(spans))
                return response.status in HOPELESS_STATUSES
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.info("event=spans_not_sent count=%s error=%s", len(spans), str(error) or type(error).__name__)
            return False
