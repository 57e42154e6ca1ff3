"""Ended spans on their way to an OTLP/HTTP endpoint: kept while it is away, in bounded memory, sent when it is back.

The SDK's own exporter blocks a thread and drops a batch once its retries are used up, within seconds, and hides the
HTTP status. Here the SDK makes the spans and its encoder the bytes; only the queue and the POST are ours.
"""

import asyncio
import logging
from collections import deque
from enum import Enum, auto

import aiohttp
import msgspec
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from connector.agent.backoff import Backoff, Occasionally
from connector.agent.environment import Secret

logger = logging.getLogger(__name__)

BATCH_SPANS = 128

HOPELESS_STATUSES = frozenset({400, 413, 415, 422})
"""The receiver read the batch and will never take it. Anything else (a wrong token, a proxy's 404) may heal."""


class ExportTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. ``gather``: how long the first span of a batch waits for company."""

    gather: float = 0.2
    request: float = 10.0
    first_retry: float = 0.5
    longest_retry: float = 15.0


class Verdict(Enum):
    ACCEPTED = auto()
    AGAIN = auto()
    HOPELESS = auto()


class SpanQueue(SpanProcessor):
    """Bounded by count; the oldest spans go first when it is full. Used from the event loop only."""

    def __init__(self, max_spans: int = 20_000) -> None:
        self.num_exported = 0
        self.num_dropped = 0
        self.num_failed_requests = 0
        self.filled = asyncio.Event()
        self._max_spans = max_spans
        self._spans: deque[ReadableSpan] = deque()

    def __len__(self) -> int:
        return len(self._spans)

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is not None and context.trace_flags.sampled:
            self._spans.append(span)
            self._trim()
            self.filled.set()

    def take(self, limit: int) -> list[ReadableSpan]:
        """Up to ``limit`` of the oldest; the caller returns them with ``put_back`` if it couldn't send them."""
        taken = [self._spans.popleft() for _ in range(min(limit, len(self._spans)))]
        if not self._spans:
            self.filled.clear()
        return taken

    def put_back(self, spans: list[ReadableSpan]) -> None:
        self._spans.extendleft(reversed(spans))
        self._trim()
        self.filled.set()

    def _trim(self) -> None:
        while len(self._spans) > self._max_spans:
            self._spans.popleft()
            self.num_dropped += 1


class SpanExport:
    """Drains a ``SpanQueue``. A failed batch goes back to the front and is tried again after a jittered delay."""

    def __init__(self, queue: SpanQueue, endpoint: str, token: Secret, timing: ExportTiming | None = None) -> None:
        self._queue = queue
        self._endpoint = endpoint
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/x-protobuf"}
        self._timing = timing or ExportTiming()
        self._complaints = Occasionally()

    async def run(self, session: aiohttp.ClientSession) -> None:
        backoff = Backoff(self._timing.first_retry, self._timing.longest_retry)
        while True:
            await self._queue.filled.wait()
            if len(self._queue) < BATCH_SPANS:
                await asyncio.sleep(self._timing.gather)
            if await self.send_one_batch(session):
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next_delay())

    async def flush(self, session: aiohttp.ClientSession) -> None:
        """Sends what is left until it is gone or a batch fails. For the end of the process."""
        while len(self._queue) and await self.send_one_batch(session):
            pass

    async def send_one_batch(self, session: aiohttp.ClientSession, limit: int = BATCH_SPANS) -> bool:
        """False when the batch has to be sent again."""
        spans = self._queue.take(limit)
        if not spans:
            return True
        verdict = Verdict.AGAIN
        try:
            verdict = await self._post(session, spans)
        finally:
            if verdict is Verdict.AGAIN:
                self._queue.num_failed_requests += 1
                self._queue.put_back(spans)
        if verdict is Verdict.ACCEPTED:
            self._queue.num_exported += len(spans)
        elif verdict is Verdict.HOPELESS:
            self._queue.num_dropped += len(spans)
        return verdict is not Verdict.AGAIN

    async def _post(self, session: aiohttp.ClientSession, spans: list[ReadableSpan]) -> Verdict:
        body = encode_spans(spans).SerializeToString()
        timeout = aiohttp.ClientTimeout(total=self._timing.request)
        try:
            async with session.post(
                self._endpoint, data=body, headers=self._headers, timeout=timeout, allow_redirects=False
            ) as response:
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._complain(f"{type(error).__name__} {error}", len(spans))
            return Verdict.AGAIN
        if 200 <= status < 300:
            return Verdict.ACCEPTED
        self._complain(f"HTTP {status}", len(spans))
        return Verdict.HOPELESS if status in HOPELESS_STATUSES else Verdict.AGAIN

    def _complain(self, reason: str, num_spans: int) -> None:
        if self._complaints.allows(reason):
            message = "span_export_failed endpoint=%s reason=%r num_spans=%d num_waiting=%d"
            logger.warning(message, self._endpoint, reason, num_spans, len(self._queue))
