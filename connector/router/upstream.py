"""The router's HTTP client: one pooled session to all engines."""

from types import TracebackType

import aiohttp
from aiohttp import payload
from multidict import CIMultiDict
from yarl import URL

CONNECT_SECONDS = 5.0

KEEPALIVE_SECONDS = 3.0
"""vLLM's server drops idle connections after 5 s; letting go earlier avoids posting into a closing one."""

READ_BUFFER_BYTES = 64 * 1024


class EngineFailedError(Exception):
    """An engine gave no answer. ``reason``: ``connect`` (nothing was sent), ``reset`` or ``timeout``."""

    def __init__(self, engine_url: URL, reason: str, detail: str) -> None:
        super().__init__(f"{engine_url.origin()}: {reason}: {detail}")
        self.reason = reason


class ReplyTooLargeError(Exception):
    """A reply that must fit in memory doesn't."""


class _Body(payload.BytesPayload):
    """Bytes of any size as they are; aiohttp's own class warns above 1 MiB, where it suggests slower file reads."""

    def __init__(self, value: bytes) -> None:
        payload.Payload.__init__(self, value, content_type="application/json")
        self._size = len(value)


class Upstream:
    """Open with ``async with``. Bodies come back as sent: nothing is decompressed, no redirect is followed."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Upstream":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS, ttl_dns_cache=30),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
            read_bufsize=READ_BUFFER_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the upstream session is not open")
        return self._session

    async def post(self, url: URL, body: bytes, headers: CIMultiDict[str]) -> aiohttp.ClientResponse:
        """The engine's reply as soon as its headers are there. Raises ``EngineFailedError``.

        A cancelled call closes its connection, which makes vLLM abort the request. How long an answer may take is the
        caller's to say: aiohttp's own read timeout sets a timer for every chunk.
        """
        try:
            return await self.session.post(url, data=_Body(body), headers=headers, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise EngineFailedError(url, "connect", str(error)) from error
        except TimeoutError as error:
            raise EngineFailedError(url, "timeout", str(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineFailedError(url, "reset", str(error)) from error

    async def get(self, url: URL, headers: CIMultiDict[str], seconds: float) -> bytes | None:
        """The body of a small 200 reply within ``seconds``; absent for any other outcome."""
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self.session.get(url, headers=headers, timeout=timeout, allow_redirects=False) as response:
                if response.status != 200:
                    return None
                return await read_whole(response, 1024 * 1024)
        except (aiohttp.ClientError, TimeoutError, OSError, ReplyTooLargeError, EngineFailedError):
            return None


async def read_whole(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole body; raises ``ReplyTooLargeError`` above ``limit`` bytes, ``EngineFailedError`` when it breaks off."""
    chunks: list[bytes] = []
    size = 0
    try:
        while chunk := await response.content.readany():
            size += len(chunk)
            if size > limit:
                response.close()
                raise ReplyTooLargeError(f"more than {limit} bytes")
            chunks.append(chunk)
    except TimeoutError as error:
        raise EngineFailedError(response.url, "timeout", str(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineFailedError(response.url, "reset", str(error)) from error
    return b"".join(chunks)
