"""The client: connections to servers, kept for a while, and an eye on those that have gone silent."""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator

from connector.http.errors import ExchangeFailedError
from connector.http.exchange import ClientConnection
from connector.http.reply import Reply
from connector.http.target import Origin, Target
from connector.http.tls import CurrentContext, client_context

MAX_SWEEP_SECONDS = 1.0

Meanwhile = Callable[[], None]
"""Work that fits into the wait for an answer. Must not raise."""


class EnginePool:
    """``request`` takes a kept connection or opens one. ``run`` must run beside it.

    ``idle_seconds``: how long a connection is kept; shorter than the server's own limit, so that no request is written
    into a closing one. ``silence_seconds``: how long a server may send nothing of an answer, and how long an answer
    that is read as a whole may take. ``tls``: what ``https`` servers are trusted by; the system's authorities unless
    given.
    """

    def __init__(
        self,
        *,
        connect_seconds: float,
        idle_seconds: float,
        silence_seconds: float,
        tls: CurrentContext | None = None,
    ) -> None:
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._silence_seconds = silence_seconds
        self._idle: dict[Origin, list[ClientConnection]] = {}
        self._busy: set[ClientConnection] = set()
        self._tls = tls

    @property
    def num_busy(self) -> int:
        return len(self._busy)

    async def request(
        self, target: Target, head: bytes, body: bytes, max_bytes: int | None = None, meanwhile: Meanwhile | None = None
    ) -> Reply:
        """The reply as soon as its first bytes are there, or with ``max_bytes`` when it is whole.

        Raises ``ExchangeFailedError``, and ``ReplyTooLargeError`` with ``max_bytes``. Cancelling it closes the
        connection, by which the server knows that nobody waits any more.
        ``meanwhile`` is called once the request is out.
        """
        connection = self._take(target.origin) or await self._connect(target)
        self._busy.add(connection)
        opened = connection.send(head, body, max_bytes)
        if meanwhile is not None:
            meanwhile()
        try:
            return await opened
        except asyncio.CancelledError:
            connection.abandon()
            raise

    def put_back(self, connection: ClientConnection) -> None:
        self._busy.discard(connection)
        connection.since = time.monotonic()
        self._idle.setdefault(connection.origin, []).append(connection)

    def forget(self, connection: ClientConnection) -> None:
        self._busy.discard(connection)
        idle = self._idle.get(connection.origin)
        if idle is not None and connection in idle:
            idle.remove(connection)

    async def run(self) -> None:
        """Sweeps for ever; cancel to stop."""
        pause = min(MAX_SWEEP_SECONDS, self._silence_seconds / 4)
        while True:
            await asyncio.sleep(pause)
            self._sweep(time.monotonic())

    def close(self) -> None:
        for connection in [*self._busy, *self._all_idle()]:
            connection.fail("reset", "the client ends")
        self._idle.clear()

    def _take(self, origin: Origin) -> ClientConnection | None:
        """The connection used last, which is the least likely to be closed under the request."""
        idle = self._idle.get(origin)
        oldest = time.monotonic() - self._idle_seconds
        while idle:
            connection = idle.pop()
            if connection.is_open and connection.since > oldest:
                return connection
            connection.abandon()
        return None

    async def _connect(self, target: Target) -> ClientConnection:
        host, port, is_tls = target.origin
        try:
            async with asyncio.timeout(self._connect_seconds):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: ClientConnection(self, target.origin), host, port, ssl=self._context() if is_tls else None
                )
        except TimeoutError as error:
            detail = f"no connection to {target.site} within {self._connect_seconds} s"
            raise ExchangeFailedError("connect", detail) from error
        except ssl.SSLError as error:
            raise ExchangeFailedError("tls", f"{target.site}: {error}") from error
        except OSError as error:
            raise ExchangeFailedError("connect", f"{target.site}: {error}") from error
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            systems = client_context(None)
            self._tls = lambda: systems
        return self._tls()

    def _all_idle(self) -> Iterator[ClientConnection]:
        for idle in self._idle.values():
            yield from idle

    def _sweep(self, now: float) -> None:
        for connection in list(self._busy):
            if connection.seen_reads != connection.num_reads:
                connection.seen_reads, connection.since = connection.num_reads, now
            is_late = connection.takes_whole and now - connection.started > self._silence_seconds
            if is_late or now - connection.since > self._silence_seconds:
                connection.fail("timeout", f"no answer within {self._silence_seconds} s")
        oldest = now - self._idle_seconds
        for connection in [one for one in self._all_idle() if one.since <= oldest]:
            connection.abandon()
        self._idle = {origin: idle for origin, idle in self._idle.items() if idle}
