"""Sends this router's claims to a stream in Redis and takes the others' from it. Nothing on a turn's path waits for it.

The stream is short and runs out by itself: Redis keeps nothing of a fleet that stopped.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from connector.router.claims.link import Link
from connector.router.claims.messages import MAX_TOKEN_CHARS, PURPOSE, Batch
from connector.router.claims.outbox import ClaimOutbox
from connector.router.claims.remote import RemoteTurns
from connector.router.metrics import Metrics
from connector.router.reconnect import delays
from connector.signing import FleetKeySource, InvalidTokenError

STREAM = "backhaul:claims"
MAX_ENTRIES = 4096
"""Batches kept, about; a router that starts reads the last seconds of them."""

STREAM_MS = 60_000
"""The stream goes when nobody has written to it for so long."""

WINDOW_MS = 10_000
"""What a router reads of the past when it connects. What it knows already is dropped by its number."""

GATHER_SECONDS = 0.01
"""Claims of so long a time travel together; a turn's reply takes longer than that."""

HEARTBEAT_SECONDS = 1.0
READ_MS = 1_000
MAX_READ = 256
ANSWER_SECONDS = 3.0
GOODBYE_SECONDS = 0.5

STEADY_SECONDS = 10.0
"""A connection that lasted so long is dialled again at once; a server that only takes them to refuse all is not."""

log = logging.getLogger(__name__)


class ClaimSharing:
    """``run`` until it is cancelled, then ``say_goodbye``."""

    def __init__(
        self, url: str, keys: FleetKeySource, outbox: ClaimOutbox, remote: RemoteTurns, metrics: Metrics
    ) -> None:
        """``url`` may hold a password: it is kept for dialling only."""
        self._url = url
        self._keys = keys
        self._outbox = outbox
        self._remote = remote
        self._metrics = metrics
        self._link = Link(_server_of(url), metrics)
        self._sender: Redis | None = None

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep("out", self._send_on))
            group.create_task(self._keep("in", self._read_on))
            group.create_task(self._expire())

    async def say_goodbye(self) -> None:
        """The others needn't wait until they miss this router. Best effort, at most half a second."""
        if not self._link.is_up:
            return
        try:
            async with self._dialled() as client, asyncio.timeout(GOODBYE_SECONDS):
                await self._send(client, [self._outbox.take(is_last=True)])
        except (RedisError, OSError, TimeoutError) as error:
            log.debug("event=claims_goodbye_unsaid reason=%s", type(error).__name__)

    async def _keep(self, way: str, work: Callable[[Redis], Awaitable[None]]) -> None:
        """One way for ever: dials again with growing pauses, while the router goes on with what it knows."""
        waits, loop = delays(), asyncio.get_running_loop()
        while True:
            dialled_at = loop.time()
            try:
                async with self._dialled() as client:
                    await work(client)
            except (RedisError, OSError, TimeoutError) as error:
                self._link.fall(way, error)
            _obey_cancellation()
            if loop.time() - dialled_at > STEADY_SECONDS:
                waits = delays()
            await asyncio.sleep(next(waits))

    @asynccontextmanager
    async def _dialled(self) -> AsyncIterator[Redis]:
        """A client without retries of its own: ``_keep`` does that, and says so. It dials with its first command, and
        is closed also when it is cancelled meanwhile."""
        client = Redis.from_url(
            self._url,
            protocol=2,
            socket_connect_timeout=ANSWER_SECONDS,
            socket_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            yield client
        finally:
            await client.aclose()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            self._remote.expire(self._link.listening_seconds)

    # ------------------------------------------------ out

    async def _send_on(self, client: Redis) -> None:
        self._outbox.open()
        try:
            while True:
                batches = [self._outbox.take()]
                while self._outbox.num_queued and len(batches) < 16:
                    batches.append(self._outbox.take())
                await self._send(client, batches)
                _obey_cancellation()
                self._link.rise("out")
                await self._outbox.wait(HEARTBEAT_SECONDS)
                await asyncio.sleep(GATHER_SECONDS)
        finally:
            self._outbox.shut()

    async def _send(self, client: Redis, batches: list[Batch]) -> None:
        key, pipe = self._keys.current, client.pipeline(transaction=False)
        for batch in batches:
            fields: Any = {"by": batch.boot, "batch": key.sign(PURPOSE, batch)}
            pipe.xadd(STREAM, fields, maxlen=MAX_ENTRIES, approximate=True)
            self._metrics.claims.labels("sent").inc(len(batch.claims))
        pipe.pexpire(STREAM, STREAM_MS)
        await pipe.execute()

    # ------------------------------------------------ in

    async def _read_on(self, client: Redis) -> None:
        seconds, micros = await client.time()
        position: bytes | str = f"{max(seconds * 1000 + micros // 1000 - WINDOW_MS, 0)}-0"
        self._link.rise("in")
        while True:
            answer: Any = await client.xread({STREAM: position}, count=MAX_READ, block=READ_MS)
            _obey_cancellation()
            if answer:
                for entry, fields in answer[0][1]:
                    position = entry
                    self._take(fields)
                await asyncio.sleep(GATHER_SECONDS)

    def _take(self, fields: dict[bytes, bytes] | None) -> None:
        """One entry. ``by`` only saves looking at what this router wrote itself."""
        if not fields or fields.get(b"by") == self._outbox.boot.encode():
            return
        token = fields.get(b"batch", b"")
        if len(token) > MAX_TOKEN_CHARS:
            self._metrics.claim_batches_refused.labels("too_large").inc()
            return
        try:
            batch = self._keys.current.verify(PURPOSE, token.decode(errors="replace"), Batch)
        except InvalidTokenError as error:
            self._metrics.claim_batches_refused.labels(error.reason).inc()
            return
        self._remote.take(batch)


def _obey_cancellation() -> None:
    """The client (redis-py 8.1) may swallow a cancellation that comes as an answer does; it would be lost for good."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _server_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 6379}" if parts.hostname else parts.path
