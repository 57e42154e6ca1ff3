"""Listens, and sees to it that no client takes longer than it may."""

import asyncio
import contextlib
import ssl
import time

from connector.http.connection import Connection
from connector.http.limits import Limits
from connector.http.requests import Service

BACKLOG = 1024
SWEEP_SECONDS = 1.0


class HttpServer:
    """``start``, then ``stop_listening``, then ``close``. ``is_ending``: each answer is the last of its connection."""

    def __init__(self, service: Service, limits: Limits) -> None:
        self.service = service
        self.limits = limits
        self.connections: set[Connection] = set()
        self.is_ending = False
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port that is, or was, listened on."""
        return self._port

    async def start(
        self, host: str, port: int, *, tls: ssl.SSLContext | None = None, reuse_port: bool | None = None
    ) -> None:
        """Listens when this returns. Raises ``OSError`` when the address can't be had."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self),
            host,
            port,
            ssl=tls,
            backlog=BACKLOG,
            reuse_port=reuse_port,
            ssl_handshake_timeout=self.limits.head_seconds if tls else None,
            ssl_shutdown_timeout=self.limits.linger_seconds if tls else None,
        )
        self._port = self._server.sockets[0].getsockname()[1]
        self._sweeper = loop.create_task(self._sweep())

    def stop_listening(self) -> None:
        """Takes no new connection; those that are open go on, and each ends with its next answer."""
        self.is_ending = True
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Ends every connection; what is still being answered is cancelled, and has ended when this returns."""
        self.stop_listening()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        tasks = [task for task in [connection.end() for connection in list(self.connections)] if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sweep(self) -> None:
        pause = min(SWEEP_SECONDS, self.limits.head_seconds / 4)
        while True:
            await asyncio.sleep(pause)
            now = time.monotonic()
            for connection in [one for one in self.connections if one.deadline < now]:
                connection.expire()
