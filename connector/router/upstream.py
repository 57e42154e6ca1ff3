"""The router's HTTP client: kept connections to all engines."""

import asyncio
from collections.abc import Callable

from connector.http import CurrentContext, EnginePool, ExchangeFailedError, Headers, Reply, ReplyTooLargeError, Target
from connector.http.headers import render

CONNECT_SECONDS = 5.0

KEEPALIVE_SECONDS = 3.0
"""vLLM's server drops idle connections after 5 s; letting go earlier avoids posting into a closing one."""

MAX_GET_BYTES = 1024 * 1024


class EngineFailedError(Exception):
    """An engine gave no answer. ``reason``: ``connect`` and ``tls`` (nothing was sent), ``reset`` or ``timeout``.

    ``is_stale``: a kept connection had been closed, so the same engine may be asked once more.
    """

    def __init__(self, engine_url: Target, reason: str, detail: str, is_stale: bool = False) -> None:
        super().__init__(f"{engine_url.site}: {detail}")
        self.reason = reason
        self.is_stale = is_stale


class Upstream:
    """Bodies come back as sent: not decompressed, no redirect followed. ``limit_seconds``: longest silence."""

    def __init__(self, limit_seconds: float, tls: CurrentContext | None = None) -> None:
        self._pool = EnginePool(
            connect_seconds=CONNECT_SECONDS, idle_seconds=KEEPALIVE_SECONDS, silence_seconds=limit_seconds, tls=tls
        )

    async def run(self) -> None:
        """Watches for silent engines, for ever; cancel to stop."""
        await self._pool.run()

    def close(self) -> None:
        self._pool.close()

    async def post(
        self,
        url: Target,
        body: bytes,
        fields: bytes,
        max_bytes: int | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Reply:
        """The engine's reply as soon as there are bytes of its body, or with ``max_bytes`` as a whole.

        ``fields`` are rendered header fields; ``meanwhile`` is called once the request is out. Raises
        ``EngineFailedError`` and ``ReplyTooLargeError``. A cancelled call closes its connection, which makes vLLM abort
        the request; so does ``Reply.close``.
        """
        head = b"%bcontent-length: %d\r\n%b\r\n" % (url.head("POST"), len(body), fields)
        try:
            return await self._pool.request(url, head, body, max_bytes, meanwhile)
        except ExchangeFailedError as error:
            raise EngineFailedError(url, error.reason, str(error), error.is_stale) from error

    async def get(self, url: Target, headers: Headers, seconds: float) -> bytes | None:
        """The body of a small 200 reply within ``seconds``; absent for any other outcome."""
        try:
            async with asyncio.timeout(seconds):
                reply = await self.get_reply(url, headers, MAX_GET_BYTES)
        except (EngineFailedError, ReplyTooLargeError, TimeoutError):
            return None
        return reply.body if reply.status == 200 else None

    async def get_reply(self, url: Target, headers: Headers, max_bytes: int) -> Reply:
        """The whole reply, whatever its status. Raises ``EngineFailedError`` and ``ReplyTooLargeError``."""
        head = b"%b%b\r\n" % (url.head("GET"), render(headers.pairs))
        try:
            return await self._pool.request(url, head, b"", max_bytes)
        except ExchangeFailedError as error:
            raise EngineFailedError(url, error.reason, str(error), error.is_stale) from error
